// Reads a partition on and on, also while its cluster is restored, and tells what it notices:
//   read OFFSET              the next offset to read
//   truncated OFFSET EPOCH   the exact end of the old timeline, as the broker told it
//   group OFFSET EPOCH       the first record that a member of the group gets afterwards
// Arguments: bootstrap, topic, group.
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.LogTruncationException;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class ReadThroughRestore {
    static final Duration POLL = Duration.ofMillis(200);

    public static void main(String[] arguments) {
        Map<String, Object> settings = new HashMap<>(Map.of(
            "bootstrap.servers", arguments[0],
            "auto.offset.reset", "none",
            "enable.auto.commit", "false",
            "metadata.max.age.ms", "1000",
            "reconnect.backoff.max.ms", "500"));
        readUntilTruncated(settings, new TopicPartition(arguments[1], 0));
        settings.put("group.id", arguments[2]);
        readAsMember(settings, arguments[1]);
    }

    static KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> settings) {
        return new KafkaConsumer<>(
            settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void readUntilTruncated(Map<String, Object> settings, TopicPartition partition) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, 0);
            long told = -1;
            while (true) {
                try {
                    consumer.poll(POLL);
                    long position = consumer.position(partition);  // it may tell of truncation, too
                    if (position != told) {
                        told = position;
                        System.out.println("read " + told);
                    }
                } catch (LogTruncationException error) {
                    OffsetAndMetadata end = error.divergentOffsets().get(partition);
                    System.out.println(
                        "truncated " + end.offset() + " " + end.leaderEpoch().orElse(-1));
                    return;
                }
            }
        }
    }

    static void readAsMember(Map<String, Object> settings, String topic) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
            consumer.subscribe(List.of(topic));
            while (true) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    System.out.println(
                        "group " + record.offset() + " " + record.leaderEpoch().orElse(-1));
                    return;
                }
            }
        }
    }
}
