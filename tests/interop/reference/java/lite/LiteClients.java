import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.OffsetOption;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** RocketMQ's Java client of gRPC with Lite topics of the parent topic "lite"; groups "lite-g" and "lite-x" (exclusive). */
public class LiteClients {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    /** All waits together end before the test does, so that it shows what is missing. Each close of a consumer takes 20 s. */
    static final long END = System.currentTimeMillis() + 100_000;
    static ClientConfiguration configuration;

    public static void main(String[] args) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics("lite").build()) {
            shared(producer);
            exclusive(producer);
        }
        System.exit(0);
    }

    static void say(String text) {
        System.out.println(text);
        System.out.flush();
    }

    static void send(Producer producer, String lite, String body) throws Exception {
        producer.send(PROVIDER.newMessageBuilder().setTopic("lite").setLiteTopic(lite)
            .setBody(body.getBytes(StandardCharsets.UTF_8)).build());
    }

    static String text(MessageView message) {
        return message.getLiteTopic().orElse("-") + ":" + StandardCharsets.UTF_8.decode(message.getBody().duplicate())
            + "/" + message.getDeliveryAttempt();
    }

    static LitePushConsumer consumer(String group, ConcurrentLinkedQueue<String> got) throws Exception {
        return PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(configuration).bindTopic("lite")
            .setConsumerGroup(group).setMessageListener(message -> {
                got.add(text(message));
                return ConsumeResult.SUCCESS;
            }).build();
    }

    static List<String> await(ConcurrentLinkedQueue<String> got, int count) throws Exception {
        while (got.size() < count && System.currentTimeMillis() < END) {
            Thread.sleep(50);
        }
        String[] found = got.toArray(new String[0]);
        Arrays.sort(found);
        return Arrays.asList(found);
    }

    static void shared(Producer producer) throws Exception {
        ConcurrentLinkedQueue<String> got = new ConcurrentLinkedQueue<>();
        send(producer, "early", "e0");
        try (LitePushConsumer consumer = consumer("lite-g", got)) {
            consumer.subscribeLite("a");
            consumer.subscribeLite("b");
            consumer.subscribeLite("early", OffsetOption.MIN_OFFSET);
            for (int i = 0; i < 4; i++) {
                send(producer, "a", Integer.toString(i));
                send(producer, "b", Integer.toString(i));
                send(producer, "c", Integer.toString(i));
            }
            say("shared " + String.join(",", await(got, 9)));
            consumer.unsubscribeLite("b");
            send(producer, "b", "late");
            send(producer, "a", "last");
            await(got, 10);
            say("after " + got.stream().skip(9).toList() + " of " + consumer.getLiteTopicSet().stream().sorted().toList());
        }
    }

    static void exclusive(Producer producer) throws Exception {
        ConcurrentLinkedQueue<String> first = new ConcurrentLinkedQueue<>();
        ConcurrentLinkedQueue<String> second = new ConcurrentLinkedQueue<>();
        try (LitePushConsumer one = consumer("lite-x", first)) {
            one.subscribeLite("x");
            send(producer, "x", "1");
            await(first, 1);
            try (LitePushConsumer two = consumer("lite-x", second)) {
                two.subscribeLite("x");
                for (int i = 0; i < 200 && !one.getLiteTopicSet().isEmpty(); i++) {
                    Thread.sleep(50);
                }
                send(producer, "x", "2");
                say("exclusive " + first + " then " + await(second, 1) + " left " + one.getLiteTopicSet());
            }
        }
    }
}
