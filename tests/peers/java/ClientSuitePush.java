import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** A push consumer that records every delivery in the order of its listener's calls. */
final class ClientSuitePush {
    private static final int RETRY_DELAY_LEVEL = 1;
    private static final int SUSPEND_MS = 100;

    final DefaultMQPushConsumer consumer;
    private final List<Object> deliveries = new ArrayList<>();
    private final Set<String> seen = new HashSet<>();
    private final String answer;
    private final DefaultMQProducer replier;

    ClientSuitePush(JSONObject p, DefaultMQProducer replier) throws Exception {
        this.answer = p.getString("answer");
        this.replier = replier;
        consumer = new DefaultMQPushConsumer(p.getString("group"));
        consumer.setNamesrvAddr(p.getString("namesrv"));
        consumer.setInstanceName(p.getString("name"));
        ClientSuite.useShortIntervals(consumer);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (p.containsKey("fromTime")) {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
            consumer.setConsumeTimestamp(p.getString("fromTime"));
        }
        if (p.containsKey("maxReconsumeTimes")) {
            consumer.setMaxReconsumeTimes(p.getIntValue("maxReconsumeTimes"));
        }
        if (p.getBooleanValue("heartbeatV2")) {
            ClientSuiteVersion.useHeartbeatV2(consumer);
        }
        if (p.getBooleanValue("broadcast")) {
            ClientSuiteVersion.broadcast(consumer);
        }
        if (p.containsKey("sql")) {
            consumer.subscribe(p.getString("topic"), MessageSelector.bySql(p.getString("sql")));
        } else {
            consumer.subscribe(p.getString("topic"), p.getString("tags"));
        }
        if (p.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                if (messages.stream().allMatch(this::take)) {
                    return ConsumeOrderlyStatus.SUCCESS;
                }
                context.setSuspendCurrentQueueTimeMillis(SUSPEND_MS);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                if (messages.stream().allMatch(this::take)) {
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                }
                context.setDelayLevelWhenNextConsume(RETRY_DELAY_LEVEL);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        try {
            consumer.start();
        } catch (Exception problem) {
            Pipe.withoutShutdownDelay(consumer::shutdown);
            throw problem;
        }
    }

    /** Records a message and returns whether it is accepted. */
    private boolean take(MessageExt message) {
        boolean isAccepted;
        synchronized (deliveries) {
            boolean isNew = seen.add(message.getMsgId());
            isAccepted = !answer.equals("refuse") && !(answer.equals("refuse-first") && isNew);
            Map<String, Object> delivery = ClientSuiteJson.describe(message);
            delivery.put("accepted", isAccepted);
            deliveries.add(delivery);
            deliveries.notifyAll();
        }
        if (answer.equals("reply")) {
            byte[] text = ("re: " + new String(message.getBody(), StandardCharsets.UTF_8))
                .getBytes(StandardCharsets.UTF_8);
            try {
                replier.send(MessageUtil.createReplyMessage(message, text));
            } catch (Exception problem) {
                throw new IllegalStateException(problem);
            }
        }
        return isAccepted;
    }

    /** All deliveries, as soon as there are `count` or the timeout has passed. */
    List<Object> received(int count, long timeoutMs) throws InterruptedException {
        long deadline = System.nanoTime() + timeoutMs * 1_000_000;
        synchronized (deliveries) {
            while (deliveries.size() < count) {
                long leftMs = (deadline - System.nanoTime()) / 1_000_000;
                if (leftMs <= 0) {
                    break;
                }
                deliveries.wait(leftMs);
            }
            return new ArrayList<>(deliveries);
        }
    }

    Object queues() {
        return ClientSuiteJson.describe(
            consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet());
    }
}
