import java.lang.reflect.Field;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * The official client and mqadmin in one long-lived JVM, so that a test need not start a JVM for
 * every command. Clients are kept by name between verbs.
 */
public final class Driver {
    private static final int POLL_ROUTES_MS = 1000;
    private static final int SEND_TIMEOUT_MS = 5000;
    private static final int ROUTE_TIMEOUT_MS = 45000;
    private static final int LOG_LINES = 2000;

    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private final Map<String, Subscriber> subscribers = new HashMap<>();

    public static void main(String[] args) throws Exception {
        Pipe.serve(new Driver()::run);
    }

    private String run(String verb, String[] a) throws Exception {
        switch (verb) {
            case "admin":
                forgetCommands();
                Pipe.withoutShutdownDelay(() -> MQAdminStartup.main0(a, null));
                return "";
            case "open-producer":
                openProducer(a[0], a[1], a[2]);
                return "";
            case "send":
                return send(
                    producers.get(a[0]), a[1], Integer.parseInt(a[2]), Integer.parseInt(a[3]), a[4]);
            case "close-producer":
                producers.remove(a[0]).shutdown();
                return "";
            case "open-consumer":
                subscribers.put(a[0], new Subscriber(a[1], a[2], a[3], a[4]));
                return "";
            case "receive":
                return subscribers.get(a[0]).receive(Integer.parseInt(a[1]), Long.parseLong(a[2]));
            case "close-consumer":
                subscribers.remove(a[0]).consumer.shutdown();
                return "";
            case "echo":
                return echo(a[0]);
            default:
                throw new IllegalArgumentException("unknown verb " + verb);
        }
    }

    /** Commands keep their clients, which do not start twice: each run gets new commands. */
    private static void forgetCommands() throws IllegalAccessException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }

    /** Returns the text while another thread writes to the console, before and after. */
    private static String echo(String text) throws InterruptedException {
        CountDownLatch started = new CountDownLatch(1);
        Thread logger = new Thread(() -> {
            for (int i = 0; i < LOG_LINES; i++) {
                System.out.println("a log line");
                started.countDown();
            }
        });
        logger.start();
        started.await();
        return text;
    }

    private void openProducer(String name, String nameServers, String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(nameServers);
        producer.setInstanceName(name);
        producer.setPollNameServerInterval(POLL_ROUTES_MS);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.start();
        producers.put(name, producer);
    }

    /**
     * Queries the route until a name server returns it. A new client queries a random name server
     * and fails if it is down; only the next query goes to another one.
     */
    private static void awaitRoute(DefaultMQProducer producer, String topic) throws Exception {
        long deadline = System.nanoTime() + ROUTE_TIMEOUT_MS * 1_000_000L;
        while (true) {
            try {
                producer.fetchPublishMessageQueues(topic);
                return;
            } catch (Exception problem) {
                if (System.nanoTime() > deadline) {
                    throw problem;
                }
                Thread.sleep(Pipe.WAKE_INTERVAL_MS);
            }
        }
    }

    /** Sends `count` messages of `size` bytes; returns their ids, one per line. */
    private static String send(DefaultMQProducer producer, String topic, int count, int size, String tag)
        throws Exception {
        awaitRoute(producer, topic);
        StringBuilder ids = new StringBuilder();
        for (int i = 0; i < count; i++) {
            byte[] body = new byte[size];
            Arrays.fill(body, (byte) ('a' + i % 26));
            Message message = new Message(topic, tag, "key-" + i, body);
            SendResult result = producer.send(message);
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException("message " + i + ": " + result);
            }
            ids.append(result.getMsgId()).append('\n');
        }
        return ids.toString();
    }

    private static final class Subscriber {
        private final DefaultMQPushConsumer consumer;
        private final Set<String> received = new LinkedHashSet<>();

        Subscriber(String nameServers, String group, String topic, String expression)
            throws Exception {
            consumer = start(nameServers, group, topic, expression);
        }

        /** A 5.x consumer does not start if it queries a name server that is down: retry. */
        private DefaultMQPushConsumer start(
            String nameServers, String group, String topic, String expression) throws Exception {
            long deadline = System.nanoTime() + ROUTE_TIMEOUT_MS * 1_000_000L;
            for (int attempt = 0; ; attempt++) {
                DefaultMQPushConsumer candidate = create(nameServers, group, topic, expression);
                candidate.setInstanceName(group + "-" + attempt);
                try {
                    candidate.start();
                    return candidate;
                } catch (Exception problem) {
                    candidate.shutdown();
                    if (System.nanoTime() > deadline) {
                        throw problem;
                    }
                    Thread.sleep(Pipe.WAKE_INTERVAL_MS);
                }
            }
        }

        private DefaultMQPushConsumer create(
            String nameServers, String group, String topic, String expression) throws Exception {
            DefaultMQPushConsumer created = new DefaultMQPushConsumer(group);
            created.setNamesrvAddr(nameServers);
            created.setPollNameServerInterval(POLL_ROUTES_MS);
            created.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            created.subscribe(topic, expression);
            created.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                synchronized (received) {
                    for (MessageExt message : messages) {
                        received.add(message.getMsgId());
                    }
                    received.notifyAll();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            return created;
        }

        /** The ids of all received messages, one per line, when there are `count` or after the timeout. */
        String receive(int count, long timeoutMs) throws InterruptedException {
            long deadline = System.nanoTime() + timeoutMs * 1_000_000;
            synchronized (received) {
                while (received.size() < count) {
                    long leftMs = (deadline - System.nanoTime()) / 1_000_000;
                    if (leftMs <= 0) {
                        break;
                    }
                    received.wait(leftMs);
                }
                return String.join("\n", received);
            }
        }
    }
}
