import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/**
 * Every kind of client of the official library, controlled by one verb at a time (see Pipe).
 *
 * <p>A verb is "kind-action"; its only argument and its result are JSON objects. Clients are kept
 * by name between verbs. The source compiles with 4.x and 5.x; the differences between the two are
 * in ClientSuiteVersion.
 */
public final class ClientSuite {
    private static final int POLL_ROUTES_MS = 1000;
    private static final int HEARTBEAT_MS = 2000;

    private final Map<String, ClientSuiteProducer> producers = new HashMap<>();
    private final Map<String, ClientSuitePush> pushes = new HashMap<>();
    private final Map<String, ClientSuitePull> pulls = new HashMap<>();
    private final Map<String, ClientSuiteLitePull> lites = new HashMap<>();

    public static void main(String[] args) throws Exception {
        Pipe.serve(new ClientSuite()::run);
    }

    static void useShortIntervals(ClientConfig client) {
        client.setPollNameServerInterval(POLL_ROUTES_MS);
        client.setHeartbeatBrokerInterval(HEARTBEAT_MS);
    }

    private String run(String verb, String[] arguments) throws Exception {
        JSONObject parameters = JSON.parseObject(arguments[0]);
        String[] parts = verb.split("-", 2);
        String name = parameters.getString("name");
        Object answer;
        switch (parts[0]) {
            case "producer":
                answer = produce(parts[1], name, parameters);
                break;
            case "push":
                answer = push(parts[1], name, parameters);
                break;
            case "pull":
                answer = pull(parts[1], name, parameters);
                break;
            case "lite":
                answer = lite(parts[1], name, parameters);
                break;
            default:
                throw new IllegalArgumentException("unknown verb " + verb);
        }
        return JSON.toJSONString(
            answer, SerializerFeature.DisableCircularReferenceDetect, SerializerFeature.WriteMapNullValue);
    }

    private Object produce(String action, String name, JSONObject p) throws Exception {
        switch (action) {
            case "open":
                producers.put(name, new ClientSuiteProducer(p));
                return null;
            case "send":
                return producers.get(name).send(p);
            case "request":
                return producers.get(name).request(p);
            case "checked":
                return producers.get(name).checked();
            case "query":
                return ClientSuiteJson.describeAll(producers.get(name).producer.queryMessage(
                    p.getString("topic"), p.getString("key"), p.getIntValue("count"),
                    p.getLongValue("beginMs"), p.getLongValue("endMs")).getMessageList());
            case "view":
                return ClientSuiteJson.describe(
                    producers.get(name).producer.viewMessage(p.getString("topic"), p.getString("id")));
            case "close":
                Pipe.withoutShutdownDelay(producers.remove(name).producer::shutdown);
                return null;
            default:
                throw new IllegalArgumentException("unknown action " + action);
        }
    }

    private Object push(String action, String name, JSONObject p) throws Exception {
        switch (action) {
            case "open":
                String replier = p.getString("replier");
                DefaultMQProducer producer = replier == null ? null : producers.get(replier).producer;
                pushes.put(name, new ClientSuitePush(p, producer));
                return null;
            case "received":
                return pushes.get(name).received(p.getIntValue("count"), p.getLongValue("timeoutMs"));
            case "queues":
                return pushes.get(name).queues();
            case "close":
                Pipe.withoutShutdownDelay(pushes.remove(name).consumer::shutdown);
                return null;
            default:
                throw new IllegalArgumentException("unknown action " + action);
        }
    }

    private Object pull(String action, String name, JSONObject p) throws Exception {
        switch (action) {
            case "open":
                pulls.put(name, new ClientSuitePull(p));
                return null;
            case "close":
                pulls.remove(name).close();
                return null;
            default:
                return pulls.get(name).run(action, p);
        }
    }

    private Object lite(String action, String name, JSONObject p) throws Exception {
        switch (action) {
            case "open":
                lites.put(name, new ClientSuiteLitePull(p));
                return null;
            case "close":
                Pipe.withoutShutdownDelay(lites.remove(name).consumer::shutdown);
                return null;
            default:
                return lites.get(name).run(action, p);
        }
    }
}
