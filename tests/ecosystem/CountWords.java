// Counts the values of a topic with Kafka Streams at its defaults: a store that its changelog restores.
// Arguments: bootstrap, application id, input topic, output topic, state directory, and a processing guarantee;
// with one, every update is written, and not the last of each commit. It runs until it is killed.
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;

public class CountWords {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("application.id", arguments[1]);
        settings.put("state.dir", arguments[4]);
        settings.put("commit.interval.ms", "100");
        settings.put("session.timeout.ms", "6000");
        settings.put("heartbeat.interval.ms", "1000");
        if (arguments.length > 5) {
            settings.put("processing.guarantee", arguments[5]);
            settings.put("statestore.cache.max.bytes", "0");
            settings.put("producer.transaction.timeout.ms", "5000");
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[2], Consumed.with(Serdes.String(), Serdes.String()))
            .groupBy((key, word) -> word, org.apache.kafka.streams.kstream.Grouped.with(Serdes.String(), Serdes.String()))
            .count()
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(arguments[3], Produced.with(Serdes.String(), Serdes.String()));
        new KafkaStreams(builder.build(), settings).start();
    }
}
