import java.io.File;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Cleans copies of a segment file with Kafka's cleaner, in its default sizes, unthrottled.
 *
 * Arguments: the segment's file, a directory for the copies, and how often to clean. For each copy it prints the
 * seconds, the CPU seconds of the cleaning thread, the bytes and records read, and the bytes and records written.
 */
public class CleanLog {
    public static void main(String[] args) throws Exception {
        Path source = Path.of(args[0]);
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        SkimpyOffsetMap offsets = new SkimpyOffsetMap(128 * 1024 * 1024);
        Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner", "bytes", Time.SYSTEM);
        Cleaner cleaner = new Cleaner(0, offsets, 262_144, 1 << 20, 0.9, throttler, Time.SYSTEM, partition -> { });
        for (int round = 0; round < Integer.parseInt(args[2]); round++) {
            File directory = Files.createDirectory(Path.of(args[1]).resolve("cleaned-" + round)).toFile();
            Files.copy(source, directory.toPath().resolve("00000000000000000000.log"));
            UnifiedLog log = UnifiedLog.create(
                directory, new LogConfig(Map.of("cleanup.policy", "compact", "segment.bytes", 1 << 30)), 0, 0,
                scheduler, new BrokerTopicStats(), Time.SYSTEM, 900_000, new ProducerStateManagerConfig(86_400_000, false),
                600_000, new LogDirFailureChannel(1), false, Optional.empty());
            log.roll();
            log.updateHighWatermark(log.logEndOffset());
            offsets.clear();
            long began = System.nanoTime();
            long beganCpu = threads.getCurrentThreadCpuTime();
            CleanerStats stats = cleaner.clean(new LogToClean(log, 0, log.logEndOffset(), false)).getValue();
            double cpu = (threads.getCurrentThreadCpuTime() - beganCpu) / 1e9;
            double seconds = (System.nanoTime() - began) / 1e9;
            System.out.printf("%f %f %d %d %d %d%n", seconds, cpu, stats.bytesRead(), stats.messagesRead(),
                stats.bytesWritten(), stats.messagesWritten());
            log.close();
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
