import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageId;

/**
 * Decodes bytes with RocketMQ. Each line of standard input has a kind and the input in hexadecimal;
 * each line of output has the decoded parts as hexadecimal UTF-8 or as numbers.
 */
public class MessageReader {
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.US_ASCII);
        // RocketMQ's logging prints its start to standard output.
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            int space = line.indexOf(' ');
            out.println(answer(line.substring(0, space), HEX.parseHex(line.substring(space + 1))));
        }
    }

    private static String answer(String kind, byte[] data) throws Exception {
        String text = new String(data, StandardCharsets.UTF_8);
        switch (kind) {
            case "record":
                return ofRecord(MessageDecoder.decode(ByteBuffer.wrap(data), true, true, false, false, true));
            case "batch":
                StringBuilder all = new StringBuilder();
                for (Message message : MessageDecoder.decodeMessages(ByteBuffer.wrap(data))) {
                    all.append(message.getFlag()).append(' ').append(hex(message.getBody())).append(' ')
                        .append(pairs(message.getProperties())).append(' ');
                }
                return all.toString().trim();
            case "hash":
                return Integer.toString(text.hashCode());
            case "id":
                MessageId id = MessageDecoder.decodeMessageId(text);
                return host((InetSocketAddress) id.getAddress()) + " " + id.getOffset();
            case "unique":
                return hex(MessageClientIDSetter.getIPFromID(text)) + " "
                    + MessageClientIDSetter.getPidFromID(text) + " "
                    + MessageClientIDSetter.getNearlyTimeFromID(text).getTime();
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    private static String ofRecord(MessageExt message) {
        if (message == null) {
            return "unreadable";
        }
        return String.join(" ", hex(message.getTopic().getBytes(StandardCharsets.UTF_8)),
            String.valueOf(message.getQueueId()), String.valueOf(message.getQueueOffset()),
            String.valueOf(message.getCommitLogOffset()), String.valueOf(message.getStoreTimestamp()),
            host((InetSocketAddress) message.getStoreHost()), String.valueOf(message.getBornTimestamp()),
            host((InetSocketAddress) message.getBornHost()), hex(message.getBody()),
            pairs(message.getProperties()), String.valueOf(message.getFlag()),
            String.valueOf(message.getReconsumeTimes()), String.valueOf(message.getPreparedTransactionOffset()),
            message.getMsgId());
    }

    private static String pairs(Map<String, String> properties) {
        return hex(new TreeMap<>(properties).toString().getBytes(StandardCharsets.UTF_8));
    }

    private static String host(InetSocketAddress address) {
        return hex(address.getAddress().getAddress()) + ":" + address.getPort();
    }

    private static String hex(byte[] data) {
        return data == null || data.length == 0 ? "-" : HEX.formatHex(data);
    }
}
