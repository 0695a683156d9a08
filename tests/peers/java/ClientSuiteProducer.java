import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A producer. Properties of a message determine the outcome of its transaction. */
final class ClientSuiteProducer {
    /** The outcomes of the local transaction and of a later check. */
    private static final String LOCAL_OUTCOME = "local";
    private static final String CHECKED_OUTCOME = "checked";
    private static final int ASYNC_TIMEOUT_MS = 15000;

    final DefaultMQProducer producer;
    private final List<Object> checked = Collections.synchronizedList(new ArrayList<>());

    ClientSuiteProducer(JSONObject p) throws Exception {
        producer = p.getBooleanValue("transactional") ? transactional(p) : new DefaultMQProducer(p.getString("group"));
        producer.setNamesrvAddr(p.getString("namesrv"));
        producer.setInstanceName(p.getString("name"));
        ClientSuite.useShortIntervals(producer);
        producer.setSendMsgTimeout(p.containsKey("timeoutMs") ? p.getIntValue("timeoutMs") : 10000);
        if (p.containsKey("retries")) {
            producer.setRetryTimesWhenSendFailed(p.getIntValue("retries"));
        }
        if (p.containsKey("compressOverBytes")) {
            producer.setCompressMsgBodyOverHowmuch(p.getIntValue("compressOverBytes"));
        }
        if (p.containsKey("compression")) {
            ClientSuiteVersion.compressWith(producer, p.getString("compression"));
        }
        if (p.containsKey("maxMessageBytes")) {
            producer.setMaxMessageSize(p.getIntValue("maxMessageBytes"));
        }
        producer.start();
    }

    private DefaultMQProducer transactional(JSONObject p) {
        TransactionMQProducer created = new TransactionMQProducer(p.getString("group"));
        created.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.valueOf(message.getUserProperty(LOCAL_OUTCOME));
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checked.add(ClientSuiteJson.describe(message));
                return LocalTransactionState.valueOf(message.getUserProperty(CHECKED_OUTCOME));
            }
        });
        return created;
    }

    Object send(JSONObject p) throws Exception {
        JSONArray given = p.getJSONArray("messages");
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < given.size(); i++) {
            messages.add(ClientSuiteJson.message(given.getJSONObject(i)));
        }
        String mode = p.getString("mode");
        if (mode.equals("batch")) {
            return Collections.singletonList(ClientSuiteJson.describe(producer.send(messages)));
        }
        if (mode.equals("async")) {
            return sendAsync(messages);
        }
        List<Object> results = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            Message message = messages.get(i);
            Integer shard = given.getJSONObject(i).getInteger("shard");
            switch (mode) {
                case "sync":
                    results.add(ClientSuiteJson.describe(
                        shard == null ? producer.send(message)
                            : producer.send(message, ClientSuiteProducer::select, shard)));
                    break;
                case "oneway":
                    producer.sendOneway(message);
                    break;
                case "transaction":
                    results.add(ClientSuiteJson.describe(producer.sendMessageInTransaction(message, null)));
                    break;
                default:
                    throw new IllegalArgumentException("unknown mode " + mode);
            }
        }
        return results;
    }

    private static MessageQueue select(List<MessageQueue> queues, Message message, Object shard) {
        return queues.get((Integer) shard % queues.size());
    }

    private List<Object> sendAsync(List<Message> messages) throws Exception {
        Object[] results = new Object[messages.size()];
        List<Throwable> problems = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch left = new CountDownLatch(messages.size());
        for (int i = 0; i < messages.size(); i++) {
            int index = i;
            producer.send(messages.get(i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    results[index] = ClientSuiteJson.describe(result);
                    left.countDown();
                }

                @Override
                public void onException(Throwable problem) {
                    problems.add(problem);
                    left.countDown();
                }
            });
        }
        if (!left.await(ASYNC_TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
            throw new TimeoutException(left.getCount() + " callbacks missing");
        }
        for (Throwable problem : problems) {
            throw new IllegalStateException(problems.size() + " sends failed", problem);
        }
        return Arrays.asList(results);
    }

    Map<String, Object> request(JSONObject p) throws Exception {
        Message question = ClientSuiteJson.message(p.getJSONObject("message"));
        // Without a selector, 4.9.4 takes its own request for the reply.
        return ClientSuiteJson.describe(
            producer.request(question, ClientSuiteProducer::select, 0, p.getLongValue("timeoutMs")));
    }

    Object checked() {
        synchronized (checked) {
            return new ArrayList<>(checked);
        }
    }
}
