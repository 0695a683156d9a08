import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The JSON form of messages, queues and results; a body has one character per byte. */
final class ClientSuiteJson {
    private ClientSuiteJson() {
    }

    static Message message(JSONObject p) {
        byte[] body = p.getString("body").getBytes(StandardCharsets.ISO_8859_1);
        Message message = new Message(p.getString("topic"), p.getString("tag"), p.getString("keys"), body);
        if (p.containsKey("delayLevel")) {
            message.setDelayTimeLevel(p.getIntValue("delayLevel"));
        }
        if (p.containsKey("properties")) {
            p.getJSONObject("properties").forEach((k, v) -> message.putUserProperty(k, (String) v));
        }
        return message;
    }

    static MessageQueue queue(JSONObject p) {
        return new MessageQueue(p.getString("topic"), p.getString("broker"), p.getIntValue("queue"));
    }

    static Map<String, Object> describe(MessageQueue queue) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("topic", queue.getTopic());
        fields.put("broker", queue.getBrokerName());
        fields.put("queue", queue.getQueueId());
        return fields;
    }

    static List<Object> describe(Iterable<MessageQueue> queues) {
        List<Object> described = new ArrayList<>();
        queues.forEach(queue -> described.add(describe(queue)));
        return described;
    }

    static Map<String, Object> describe(SendResult result) {
        Map<String, Object> fields = describe(result.getMessageQueue());
        fields.put("status", result.getSendStatus().name());
        fields.put("id", result.getMsgId());
        fields.put("offsetId", result.getOffsetMsgId());
        fields.put("offset", result.getQueueOffset());
        if (result instanceof TransactionSendResult) {
            fields.put("outcome", ((TransactionSendResult) result).getLocalTransactionState().name());
        }
        return fields;
    }

    static Map<String, Object> describe(Message message) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("topic", message.getTopic());
        fields.put("tag", message.getTags());
        fields.put("keys", message.getKeys());
        fields.put("body", new String(message.getBody(), StandardCharsets.ISO_8859_1));
        fields.put("properties", message.getProperties());
        if (message instanceof MessageExt) {
            MessageExt stored = (MessageExt) message;
            fields.put("id", stored.getMsgId() == null ? "" : stored.getMsgId());
            fields.put("broker", stored.getBrokerName());
            fields.put("queue", stored.getQueueId());
            fields.put("offset", stored.getQueueOffset());
            fields.put("attempt", stored.getReconsumeTimes());
            fields.put("bornMs", stored.getBornTimestamp());
            fields.put("storedMs", stored.getStoreTimestamp());
            fields.put("sysFlag", stored.getSysFlag());
        }
        if (message instanceof MessageClientExt) {
            fields.put("offsetId", ((MessageClientExt) message).getOffsetMsgId());
        }
        return fields;
    }

    static List<Object> describeAll(Iterable<? extends Message> messages) {
        List<Object> described = new ArrayList<>();
        messages.forEach(message -> described.add(describe(message)));
        return described;
    }
}
