import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * One measurement of the official client, for the comparison in bench/client.py.
 *
 * <p>Arguments: name server, topic, group, work (sync, async or consume), and the seconds of the
 * measurement or the number of messages (consume). The result is one line of JSON.
 */
public final class ClientBench {
    private static final int BODY_BYTES = 100;
    private static final int WINDOW = 1000;
    /** The JIT compiler needs this time to compile the client. */
    private static final double MIN_WARM_UP_SECONDS = 10;

    private ClientBench() {}

    public static void main(String[] words) throws Exception {
        String namesrv = words[0];
        String topic = words[1];
        String group = words[2];
        String result;
        switch (words[3]) {
            case "sync":
                result = sync(namesrv, topic, group, Double.parseDouble(words[4]));
                break;
            case "async":
                result = async(namesrv, topic, group, Double.parseDouble(words[4]));
                break;
            case "consume":
                result = consume(namesrv, topic, group, Integer.parseInt(words[4]));
                break;
            default:
                throw new IllegalArgumentException(words[3]);
        }
        System.out.println(result);
        System.out.flush();
        System.exit(0);
    }

    private static DefaultMQProducer producer(String namesrv, String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        return producer;
    }

    private static Message message(String topic) {
        return new Message(topic, "TagA", new byte[BODY_BYTES]);
    }

    private static String sync(String namesrv, String topic, String group, double seconds)
        throws Exception {
        DefaultMQProducer producer = producer(namesrv, group);
        sendFor(producer, topic, Math.max(seconds, MIN_WARM_UP_SECONDS), new long[1 << 22]);
        long[] nanos = new long[1 << 22];
        long cpu = cpuNanos();
        long began = System.nanoTime();
        int count = sendFor(producer, topic, seconds, nanos);
        long took = System.nanoTime() - began;
        cpu = cpuNanos() - cpu;
        producer.shutdown();
        Arrays.sort(nanos, 0, count);
        return result(count, took, cpu, nanos[count / 2], nanos[(int) (count * 0.99)]);
    }

    private static int sendFor(DefaultMQProducer producer, String topic, double seconds, long[] nanos)
        throws Exception {
        long end = System.nanoTime() + (long) (seconds * 1e9);
        int count = 0;
        while (System.nanoTime() < end && count < nanos.length) {
            long began = System.nanoTime();
            producer.send(message(topic));
            nanos[count++] = System.nanoTime() - began;
        }
        return count;
    }

    private static String async(String namesrv, String topic, String group, double seconds)
        throws Exception {
        DefaultMQProducer producer = producer(namesrv, group);
        sendAsyncFor(producer, topic, Math.max(seconds, MIN_WARM_UP_SECONDS));
        long cpu = cpuNanos();
        long began = System.nanoTime();
        long count = sendAsyncFor(producer, topic, seconds);
        long took = System.nanoTime() - began;
        cpu = cpuNanos() - cpu;
        producer.shutdown();
        return result(count, took, cpu, 0, 0);
    }

    private static long sendAsyncFor(DefaultMQProducer producer, String topic, double seconds)
        throws Exception {
        Semaphore window = new Semaphore(WINDOW);
        AtomicLong failed = new AtomicLong();
        SendCallback callback =
            new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    window.release();
                }

                @Override
                public void onException(Throwable error) {
                    failed.incrementAndGet();
                    window.release();
                }
            };
        long end = System.nanoTime() + (long) (seconds * 1e9);
        long count = 0;
        while (System.nanoTime() < end) {
            window.acquire();
            producer.send(message(topic), callback);
            count++;
        }
        window.acquire(WINDOW);
        if (failed.get() > 0) {
            throw new IllegalStateException(failed.get() + " of " + count + " sends failed");
        }
        return count;
    }

    private static String consume(String namesrv, String topic, String group, int wanted)
        throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        AtomicLong seen = new AtomicLong();
        AtomicLong began = new AtomicLong();
        AtomicLong cpu = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        consumer.registerMessageListener(
            (MessageListenerConcurrently)
                (messages, context) -> {
                    long now = seen.addAndGet(messages.size());
                    if (now == messages.size()) {
                        cpu.set(cpuNanos());
                        began.set(System.nanoTime());
                    }
                    if (now >= wanted) {
                        done.countDown();
                    }
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
        consumer.start();
        done.await();
        long took = System.nanoTime() - began.get();
        long used = cpuNanos() - cpu.get();
        consumer.shutdown();
        return result(seen.get(), took, used, 0, 0);
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)
                ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime();
    }

    private static String result(long count, long nanos, long cpuNanos, long p50, long p99) {
        return String.format(
            Locale.ROOT,
            "{\"count\": %d, \"seconds\": %.6f, \"cpu_seconds\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f}",
            count,
            nanos / 1e9,
            cpuNanos / 1e9,
            p50 / 1e3,
            p99 / 1e3);
    }
}
