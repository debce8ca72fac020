import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** consumerFilter.json as its broker reads and writes it: "write FILE GROUP TOPIC EXPRESSION ..." or "read FILE". */
public class ConsumerFilters {
    public static void main(String[] args) throws Exception {
        ConsumerFilterManager manager = new ConsumerFilterManager(new BrokerController(
            new BrokerConfig(), new NettyServerConfig(), new NettyClientConfig(), new MessageStoreConfig()));
        Path file = Path.of(args[1]);
        if (args[0].equals("read")) {
            manager.decode(new String(Files.readAllBytes(file), StandardCharsets.UTF_8));
            manager.getFilterDataByTopic().forEach((topic, groups) -> groups.getGroupFilterData().forEach(
                (group, data) -> System.out.println(String.join("\t", topic, group, data.getExpressionType(),
                    data.getExpression(), String.valueOf(data.getClientVersion()), String.valueOf(data.isDead()),
                    String.valueOf(data.getCompiledExpression() != null),
                    String.valueOf(manager.getBloomFilter().isValid(data.getBloomFilterData()))))));
        } else {
            for (int i = 2; i + 2 < args.length; i += 3) {
                SubscriptionData subscription = new SubscriptionData(args[i + 1], args[i + 2]);
                subscription.setExpressionType("SQL92");
                subscription.setSubVersion(7);
                manager.register(args[i], List.of(subscription));
            }
            Files.write(file, manager.encode(true).getBytes(StandardCharsets.UTF_8));
        }
        System.exit(0);
    }
}
