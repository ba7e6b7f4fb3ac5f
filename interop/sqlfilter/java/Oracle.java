import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;

import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.util.BloomFilter;

/**
 * Answers questions to the genuine filter, one line each. Texts are base64.
 *
 * <pre>
 * E expression             compile: OK, or ERR message
 * P name SOH value STX ... evaluate it: TRUE, FALSE, NULL, or THROWS class of the
 *                          cause and class of the JDK that threw it
 * B rate groups            Bloom filter: bits and hashes
 * H rate groups key        positions of the key
 * </pre>
 */
public final class Oracle {
    private static Expression expression;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, false, "US-ASCII");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(line.split(" ", -1)));
        }
        out.flush();
    }

    private static String answer(String[] question) {
        switch (question[0]) {
            case "E":
                return compile(text(question[1]));
            case "P":
                return evaluate(text(question[1]));
            case "B":
                BloomFilter f = filter(question);
                return f.getM() + " " + f.getK();
            default:
                return Arrays.toString(filter(question).calcBitPositions(text(question[3])));
        }
    }

    private static String compile(String text) {
        expression = null;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
            return "OK";
        } catch (Exception e) {
            String message = String.valueOf(e.getMessage());
            return "ERR " + Base64.getEncoder().encodeToString(message.getBytes(StandardCharsets.UTF_8));
        }
    }

    private static String evaluate(String pairs) {
        final Map<String, String> properties = new HashMap<>();
        for (String pair : pairs.split("\u0002")) {
            int sep = pair.indexOf('\u0001');
            if (sep > 0) {
                properties.put(pair.substring(0, sep), pair.substring(sep + 1));
            }
        }
        try {
            Object result = expression.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return new HashMap<String, Object>(properties);
                }
            });
            return result == null ? "NULL" : result == Boolean.TRUE ? "TRUE" : "FALSE";
        } catch (Exception e) {
            Throwable cause = e;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            String thrower = "";
            for (StackTraceElement frame : cause.getStackTrace()) {
                if (frame.getClassName().matches("java.lang.(Integer|Long|Double)")) {
                    thrower = frame.getClassName();
                    break;
                }
            }
            return "THROWS " + cause.getClass().getSimpleName() + " " + thrower;
        }
    }

    private static BloomFilter filter(String[] question) {
        return BloomFilter.createByFn(Integer.parseInt(question[1]), Integer.parseInt(question[2]));
    }

    private static String text(String base64) {
        return new String(Base64.getDecoder().decode(base64), StandardCharsets.UTF_8);
    }
}
