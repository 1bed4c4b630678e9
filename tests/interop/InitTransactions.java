// Says how long initTransactions() takes to fail, and with what. Arguments: bootstrap, transactional id.
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.serialization.StringSerializer;

public class InitTransactions {
    public static void main(String[] arguments) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", arguments[0],
            "transactional.id", arguments[1]);
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, text, text)) {
            producer.partitionsFor(arguments[2]); // connected: what follows is the broker's answer
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
