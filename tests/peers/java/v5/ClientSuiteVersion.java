import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** The calls that differ between 4.x and 5.x clients, for 5.x. */
final class ClientSuiteVersion {
    private ClientSuiteVersion() {
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static void useHeartbeatV2(DefaultMQPushConsumer consumer) {
        consumer.setUseHeartbeatV2(true);
    }

    static void compressWith(DefaultMQProducer producer, String kind) {
        producer.setCompressType(CompressionType.of(kind));
    }
}
