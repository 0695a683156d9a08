import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;

/**
 * The protocol between a test and a long-lived JVM: requests on stdin, answers on stdout, one at a
 * time.
 *
 * <p>A request is a line of space-separated words in Base64: the verb and its arguments. The answer
 * is a line "ok|failed ANSWER_BYTES OUT_BYTES ERR_BYTES", followed by the result of the verb and by
 * the output to System.out and System.err meanwhile. The outputs are separate because any thread may
 * write to them: a 4.x client logs to the console. The end of stdin ends the JVM.
 */
final class Pipe {
    static final int WAKE_INTERVAL_MS = 50;

    interface Verbs {
        String run(String verb, String[] arguments) throws Exception;
    }

    interface Work {
        void run() throws Exception;
    }

    private Pipe() {
    }

    static void serve(Verbs verbs) throws Exception {
        PrintStream answers = System.out;
        BufferedReader requests =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, "UTF-8"));
            System.setErr(new PrintStream(err, true, "UTF-8"));
            String outcome = "ok";
            String answer = "";
            try {
                String[] words = Arrays.stream(line.split(" ", -1))
                    .map(word -> new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8))
                    .toArray(String[]::new);
                answer = verbs.run(words[0], Arrays.copyOfRange(words, 1, words.length));
            } catch (Throwable problem) {
                outcome = "failed";
                problem.printStackTrace();
            }
            System.out.flush();
            System.err.flush();
            byte[] answerBytes = answer.getBytes(StandardCharsets.UTF_8);
            byte[] outBytes = out.toByteArray();
            byte[] errBytes = err.toByteArray();
            answers.print(outcome + " " + answerBytes.length + " " + outBytes.length + " "
                + errBytes.length + "\n");
            answers.write(answerBytes);
            answers.write(outBytes);
            answers.write(errBytes);
            answers.flush();
        }
        // Clients that were not closed have threads that would keep the JVM alive.
        Runtime.getRuntime().halt(0);
    }

    /**
     * Runs the shutdown of a client without the delay of a 5.x client, which waits for its
     * NettyEventExecutor. That thread may sleep for 3 s before it notices the shutdown; an interrupt
     * wakes it.
     */
    static void withoutShutdownDelay(Work work) throws Exception {
        Thread waker = new Thread(() -> {
            try {
                while (true) {
                    Thread.sleep(WAKE_INTERVAL_MS);
                    for (Thread thread : Thread.getAllStackTraces().keySet()) {
                        if (thread.getName().equals("NettyEventExecutor")) {
                            thread.interrupt();
                        }
                    }
                }
            } catch (InterruptedException done) {
                return;
            }
        });
        waker.start();
        try {
            work.run();
        } finally {
            waker.interrupt();
            waker.join();
        }
    }
}
