import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.message.MessageQueue;

/** A pull consumer; a pull that waits for messages runs concurrently with later verbs. */
@SuppressWarnings("deprecation")
final class ClientSuitePull {
    final DefaultMQPullConsumer consumer;
    private final ExecutorService waiting = Executors.newCachedThreadPool();
    private Future<Object> pending;

    ClientSuitePull(JSONObject p) throws Exception {
        consumer = new DefaultMQPullConsumer(p.getString("group"));
        consumer.setNamesrvAddr(p.getString("namesrv"));
        consumer.setInstanceName(p.getString("name"));
        ClientSuite.useShortIntervals(consumer);
        consumer.start();
    }

    void close() throws Exception {
        waiting.shutdownNow();
        Pipe.withoutShutdownDelay(consumer::shutdown);
    }

    Object run(String verb, JSONObject p) throws Exception {
        switch (verb) {
            case "queues":
                return ClientSuiteJson.describe(consumer.fetchSubscribeMessageQueues(p.getString("topic")));
            case "offsets":
                return offsets(ClientSuiteJson.queue(p));
            case "search":
                return consumer.searchOffset(ClientSuiteJson.queue(p), p.getLongValue("timestampMs"));
            case "pull":
                return pull(p);
            case "begin":
                pending = waiting.submit(() -> pull(p));
                return null;
            case "finish":
                return pending.get(p.getLongValue("timeoutMs"), TimeUnit.MILLISECONDS);
            case "commit":
                consumer.updateConsumeOffset(ClientSuiteJson.queue(p), p.getLongValue("offset"));
                // The client itself sends only the offsets of queues that are allocated to it.
                consumer.getOffsetStore().persistAll(Collections.singleton(ClientSuiteJson.queue(p)));
                return null;
            case "committed":
                return consumer.fetchConsumeOffset(ClientSuiteJson.queue(p), true);
            default:
                throw new IllegalArgumentException("unknown verb " + verb);
        }
    }

    private Object offsets(MessageQueue queue) throws Exception {
        List<Long> offsets = new ArrayList<>();
        offsets.add(consumer.minOffset(queue));
        offsets.add(consumer.maxOffset(queue));
        return offsets;
    }

    private Object pull(JSONObject p) throws Exception {
        MessageQueue queue = ClientSuiteJson.queue(p);
        String tags = p.getString("tags");
        long offset = p.getLongValue("offset");
        int count = p.getIntValue("count");
        PullResult result = p.getBooleanValue("wait")
            ? consumer.pullBlockIfNotFound(queue, tags, offset, count)
            : consumer.pull(queue, tags, offset, count);
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("status", result.getPullStatus().name());
        fields.put("nextOffset", result.getNextBeginOffset());
        fields.put("minOffset", result.getMinOffset());
        fields.put("maxOffset", result.getMaxOffset());
        fields.put("messages", ClientSuiteJson.describeAll(
            result.getMsgFoundList() == null ? new ArrayList<>() : result.getMsgFoundList()));
        return fields;
    }
}
