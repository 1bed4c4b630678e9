// Says how long initTransactions() takes to fail, and with what: a line for each of some producers.
// The first pays for a JVM that has just begun. Arguments: bootstrap, transactional id, topic.
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.serialization.StringSerializer;

public class InitTransactions {
    static final int PRODUCERS = 3;

    public static void main(String[] arguments) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", arguments[0],
            "transactional.id", arguments[1]);
        for (int count = 0; count < PRODUCERS; count++) {
            tell(settings, arguments[2]);
        }
    }

    static void tell(Map<String, Object> settings, String topic) {
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, text, text)) {
            producer.partitionsFor(topic); // connected: what follows is the broker's answer
            long began = System.nanoTime();
            String outcome = "begun";
            try {
                producer.initTransactions();
            } catch (Exception error) {
                outcome = error.getClass().getSimpleName();
            }
            System.out.println(outcome + " " + (System.nanoTime() - began) / 1_000_000);
        }
    }
}
