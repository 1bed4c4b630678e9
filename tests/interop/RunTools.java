import java.io.ByteArrayOutputStream;
import java.io.FileInputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Scanner;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command line tools one after the other in one process: a process of its own costs a tool a second.
 *
 * A line of standard input is a main class and its arguments, divided by tabs; a last argument "<FILE" is the
 * tool's standard input. For each line it prints a line with "### " and the exit code, and then whatever the
 * tool wrote to standard output and standard error.
 */
public class RunTools {
    private static class Ended extends Error {
        Ended() {
            super(null, null, false, false);
        }
    }

    private static Integer exitCode; // the first one: some tools catch what ends them, and exit again

    private static Ended end(int code) {
        if (exitCode == null) {
            exitCode = code;
        }
        return new Ended();
    }

    public static void main(String[] args) throws Exception {
        Exit.setExitProcedure((code, message) -> {
            throw end(code);
        });
        Exit.setHaltProcedure((code, message) -> {
            throw end(code);
        });
        PrintStream out = System.out;
        Scanner lines = new Scanner(System.in, StandardCharsets.UTF_8);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split("\t");
            ByteArrayOutputStream written = new ByteArrayOutputStream();
            PrintStream capture = new PrintStream(written, true, StandardCharsets.UTF_8);
            System.setOut(capture);
            System.setErr(capture);
            String last = words[words.length - 1];
            if (last.startsWith("<")) {
                System.setIn(new FileInputStream(last.substring(1)));
                words = Arrays.copyOf(words, words.length - 1);
            }
            int code = run(words, capture);

            out.println("### " + code);
            out.println(written.toString(StandardCharsets.UTF_8));
        }
        System.setOut(out);
        Runtime.getRuntime().halt(0);
    }

    private static int run(String[] words, PrintStream capture) throws Exception {
        exitCode = null;
        Object arguments = Arrays.copyOfRange(words, 1, words.length);
        try {
            Class.forName(words[0]).getMethod("main", String[].class).invoke(null, arguments);
        } catch (java.lang.reflect.InvocationTargetException error) {
            if (error.getCause() instanceof Ended) {
                return exitCode;
            }
            error.getCause().printStackTrace(capture);
            return 1;
        }
        return 0;
    }
}
