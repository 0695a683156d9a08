import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A lite-pull consumer with assigned queues or a subscription; it commits on request. */
final class ClientSuiteLitePull {
    private static final int POLL_MS = 200;

    final DefaultLitePullConsumer consumer;

    ClientSuiteLitePull(JSONObject p) throws Exception {
        consumer = new DefaultLitePullConsumer(p.getString("group"));
        consumer.setNamesrvAddr(p.getString("namesrv"));
        consumer.setInstanceName(p.getString("name"));
        ClientSuite.useShortIntervals(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        if (p.containsKey("sql")) {
            consumer.subscribe(p.getString("topic"), MessageSelector.bySql(p.getString("sql")));
        } else if (p.containsKey("topic")) {
            consumer.subscribe(p.getString("topic"), p.getString("tags"));
        }
        consumer.start();
    }

    Object run(String verb, JSONObject p) throws Exception {
        switch (verb) {
            case "queues":
                return ClientSuiteJson.describe(consumer.fetchMessageQueues(p.getString("topic")));
            case "assign":
                assign(p.getJSONArray("queues"));
                return null;
            case "seek":
                consumer.seek(ClientSuiteJson.queue(p), p.getLongValue("offset"));
                return null;
            case "search":
                return consumer.offsetForTimestamp(ClientSuiteJson.queue(p), p.getLong("timestampMs"));
            case "poll":
                return poll(p.getIntValue("count"), p.getLongValue("timeoutMs"));
            case "commit":
                consumer.commitSync();
                return null;
            case "committed":
                return consumer.committed(ClientSuiteJson.queue(p));
            default:
                throw new IllegalArgumentException("unknown verb " + verb);
        }
    }

    private void assign(JSONArray given) {
        List<MessageQueue> queues = new ArrayList<>();
        for (int i = 0; i < given.size(); i++) {
            queues.add(ClientSuiteJson.queue(given.getJSONObject(i)));
        }
        consumer.assign(queues);
    }

    /** Polls until there are `count` messages or the timeout has passed. */
    private Object poll(int count, long timeoutMs) {
        long deadline = System.nanoTime() + timeoutMs * 1_000_000;
        List<MessageExt> found = new ArrayList<>();
        while (found.size() < count && System.nanoTime() < deadline) {
            found.addAll(consumer.poll(POLL_MS));
        }
        return ClientSuiteJson.describeAll(found);
    }
}
