import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/** What a 4.x client spells differently, or cannot do. */
final class ClientSuiteVersion {
    private ClientSuiteVersion() {
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static void useHeartbeatV2(DefaultMQPushConsumer consumer) {
        throw new IllegalArgumentException("a 4.x client has one kind of heartbeat only");
    }

    static void compressWith(DefaultMQProducer producer, String kind) {
        if (!kind.equals("ZLIB")) {
            throw new IllegalArgumentException("a 4.x client compresses with ZLIB only");
        }
    }
}
