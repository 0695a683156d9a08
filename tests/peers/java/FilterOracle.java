import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;
import org.apache.rocketmq.filter.util.BloomFilter;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;

/**
 * The results of the official filter for each line of the input: space-separated words in Base64.
 *
 * <pre>
 *   sql EXPRESSION [NAME VALUE]...  -> true | false | null | syntax-error | evaluation-error
 *   tags EXPRESSION                 -> subString in Base64 and the sorted codes | syntax-error
 *   bloom GROUP TOPIC               -> bit positions
 * </pre>
 */
public final class FilterOracle {
    private static final BloomFilter BLOOM = BloomFilter.createByFn(20, 32);

    public static void main(String[] args) throws Exception {
        BufferedReader questions =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        StringBuilder answers = new StringBuilder();
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            String[] words = Arrays.stream(line.split(" ", -1))
                .map(word -> new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8))
                .toArray(String[]::new);
            answers.append(answer(words)).append('\n');
        }
        System.out.print(answers);
    }

    private static String answer(String[] words) {
        switch (words[0]) {
            case "sql":
                return evaluate(words);
            case "tags":
                return parseTags(words[1]);
            case "bloom":
                int[] positions = BLOOM.generate(words[1] + "#" + words[2]).getBitPos();
                return Arrays.toString(positions);
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static String evaluate(String[] words) {
        Expression expression;
        try {
            expression = SelectorParser.parse(words[1]);
        } catch (MQFilterException problem) {
            return "syntax-error";
        }
        Map<String, String> properties = new HashMap<>();
        for (int i = 2; i < words.length; i += 2) {
            properties.put(words[i], words[i + 1]);
        }
        try {
            return String.valueOf(expression.evaluate(new MessageEvaluationContext(properties)));
        } catch (Exception problem) {
            return "evaluation-error";
        }
    }

    private static String parseTags(String expression) {
        SubscriptionData subscription;
        try {
            subscription = FilterAPI.buildSubscriptionData("T", expression);
        } catch (Exception problem) {
            return "syntax-error";
        }
        byte[] subString = subscription.getSubString().getBytes(StandardCharsets.UTF_8);
        return Base64.getEncoder().encodeToString(subString)
            + " " + new TreeSet<>(subscription.getCodeSet());
    }
}
