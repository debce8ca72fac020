import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;

/** What its SQL92 filter says: JSON lines {"expression", "messages": [properties]} in, {"results"} out; null: no parse. */
public class SqlFilters {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject asked = JSON.parseObject(line);
            Map<String, Object> said = new LinkedHashMap<>();
            said.put("results", results(asked));
            byte[] text = (JSON.toJSONString(said, com.alibaba.fastjson2.JSONWriter.Feature.WriteNulls) + "\n")
                .getBytes(StandardCharsets.UTF_8);
            System.out.write(text, 0, text.length);
        }
        System.out.flush();
        System.exit(0);
    }

    private static String results(JSONObject asked) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(asked.getString("expression"));
        } catch (Throwable e) {
            return null;
        }
        StringBuilder made = new StringBuilder();
        for (Object one : asked.getJSONArray("messages")) {
            Map<String, String> properties = new HashMap<>();
            ((JSONObject) one).forEach((name, value) -> properties.put(name, (String) value));
            String result;
            try {
                Object value = expression.evaluate(new MessageEvaluationContext(properties));
                result = value == null ? "N" : (Boolean) value ? "T" : "F";
            } catch (Throwable e) {
                result = "E";
            }
            made.append(result);
        }
        return made.toString();
    }
}
