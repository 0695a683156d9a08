import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** What a 5.x client spells differently from a 4.x one. */
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
