import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/** The calls that differ between 4.x and 5.x clients, for 4.x. */
final class ClientSuiteVersion {
    private ClientSuiteVersion() {
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static void useHeartbeatV2(DefaultMQPushConsumer consumer) {
        throw new IllegalArgumentException("a 4.x client supports only one kind of heartbeat");
    }

    static void compressWith(DefaultMQProducer producer, String kind) {
        if (!kind.equals("ZLIB")) {
            throw new IllegalArgumentException("a 4.x client compresses with ZLIB only");
        }
    }
}
