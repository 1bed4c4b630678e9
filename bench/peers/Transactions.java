import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Times one load of small records: BOOTSTRAP TOPIC PREFIX MODE PRODUCERS PARTITIONS ROUNDS.
 *
 * plain: each producer sends a record and waits for its acknowledgement, ROUNDS times.
 * transactions: the same, a record to each of PARTITIONS in a transaction that is committed.
 * visible: one producer; the time from the end of commitTransaction until a reader of committed
 * records has the record. Prints p50 and p99 in ms, and rounds a second. A fifth warms up.
 */
public class Transactions {
    static Properties common(String bootstrap) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        return settings;
    }

    static KafkaProducer<byte[], byte[]> producer(String bootstrap, String id) {
        Properties settings = common(bootstrap);
        if (id != null) settings.put("transactional.id", id);
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings);
        if (id != null) producer.initTransactions();
        return producer;
    }

    static void round(KafkaProducer<byte[], byte[]> producer, String topic, int partitions, byte[] value,
            boolean inTransaction) throws Exception {
        if (!inTransaction) {
            producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
            return;
        }
        producer.beginTransaction();
        for (int partition = 0; partition < partitions; partition++)
            producer.send(new ProducerRecord<>(topic, partition, null, value));
        // Without it a client of TV2 may send EndTxn before the records: docs/clients.md#transactions
        producer.flush();
        producer.commitTransaction();
    }

    static void print(long[] nanos, double rate) {
        Arrays.sort(nanos);
        System.out.printf("p50=%.2f p99=%.2f rate=%.2f%n", nanos[nanos.length / 2] / 1e6,
                nanos[(int) (nanos.length * 0.99)] / 1e6, rate);
    }

    static void visible(String bootstrap, String topic, String prefix, int rounds) throws Exception {
        ConcurrentHashMap<Integer, Long> received = new ConcurrentHashMap<>();
        CountDownLatch ready = new CountDownLatch(1);
        Thread reader = new Thread(() -> {
            Properties settings = common(bootstrap);
            settings.put("isolation.level", "read_committed");
            try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
                TopicPartition partition = new TopicPartition(topic, 0);
                consumer.assign(List.of(partition));
                consumer.seekToEnd(List.of(partition));
                consumer.position(partition);
                ready.countDown();
                while (received.size() < rounds)
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100)))
                        received.put(Integer.parseInt(new String(record.value())), System.nanoTime());
            }
        });
        reader.start();
        ready.await();
        long[] committed = new long[rounds];
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, prefix)) {
            for (int number = 0; number < rounds; number++) {
                round(producer, topic, 1, String.valueOf(number).getBytes(), true);
                committed[number] = System.nanoTime();
                Thread.sleep(20);
            }
        }
        reader.join();
        int first = rounds / 5;
        long[] nanos = new long[rounds - first];
        for (int number = first; number < rounds; number++)
            nanos[number - first] = Math.max(0, received.get(number) - committed[number]);
        print(nanos, 0);
    }

    public static void main(String[] words) throws Exception {
        String bootstrap = words[0], topic = words[1], prefix = words[2], mode = words[3];
        int producers = Integer.parseInt(words[4]), partitions = Integer.parseInt(words[5]);
        int rounds = Integer.parseInt(words[6]), first = rounds / 5;
        if (mode.equals("visible")) {
            visible(bootstrap, topic, prefix, rounds);
            return;
        }
        boolean inTransaction = mode.equals("transactions");
        long[] nanos = new long[producers * (rounds - first)];
        CountDownLatch warm = new CountDownLatch(producers);
        Thread[] threads = new Thread[producers];
        Exception[] failures = new Exception[1];
        byte[] value = new byte[100];
        for (int number = 0; number < producers; number++) {
            int at = number;
            threads[at] = new Thread(() -> {
                try (KafkaProducer<byte[], byte[]> producer =
                        producer(bootstrap, inTransaction ? prefix + "-" + at : null)) {
                    for (int turn = 0; turn < rounds; turn++) {
                        if (turn == first) {
                            warm.countDown();
                            warm.await();
                        }
                        long begun = System.nanoTime();
                        round(producer, topic, partitions, value, inTransaction);
                        if (turn >= first) nanos[at * (rounds - first) + turn - first] = System.nanoTime() - begun;
                    }
                } catch (Exception failure) {
                    failures[0] = failure;
                    warm.countDown();
                }
            });
            threads[at].start();
        }
        warm.await();
        long begun = System.nanoTime();
        for (Thread thread : threads) thread.join();
        double seconds = (System.nanoTime() - begun) / 1e9;
        if (failures[0] != null) throw failures[0];
        print(nanos, producers * (rounds - first) / seconds);
        System.exit(0);
    }
}
