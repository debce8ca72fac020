import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** RocketMQ's Java client of gRPC: every kind of message and consumer. Topics: normal, ordered, later, half, dead. */
public class GrpcClients {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static ClientConfiguration configuration;

    public static void main(String[] args) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(args[2].equals("tls"))
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        switch (args[1]) {
            case "simple" -> simple();
            case "push" -> push();
            case "ordered" -> ordered();
            case "delay" -> delay();
            case "transactions" -> transactions();
            case "dead" -> dead();
            default -> throw new IllegalArgumentException(args[1]);
        }
        System.exit(0);
    }

    static void say(String text) {
        System.out.println(text);
        System.out.flush();
    }

    static String text(MessageView message) {
        ByteBuffer body = message.getBody().duplicate();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static Producer producer(String... topics) throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topics).build();
    }

    static SimpleConsumer consumer(String group, String topic, FilterExpression expression) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(topic, expression)).build();
    }

    static void simple() throws Exception {
        try (Producer producer = producer("normal")) {
            for (int n = 0; n < 6; n++) {
                SendReceipt receipt = producer.send(message("normal", "m" + n).setTag(n % 2 == 0 ? "even" : "odd")
                    .setKeys("k" + n).addProperty("n", String.valueOf(n)).build());
                say("sent " + (receipt.getMessageId().toString().length() > 0));
            }
            say("async " + (producer.sendAsync(message("normal", "m6").setTag("even").addProperty("n", "6").build())
                .get(20, TimeUnit.SECONDS) != null));
        }
        receive("java-simple", "*", FilterExpression.SUB_ALL, 7, true);
        receive("java-tag", "tag", new FilterExpression("even"), 4, false);
        receive("java-sql", "sql", new FilterExpression("n > 3", FilterExpressionType.SQL92), 3, false);
    }

    static void receive(String group, String name, FilterExpression expression, int count, boolean nackFirst)
            throws Exception {
        java.util.TreeSet<String> found = new java.util.TreeSet<>();
        boolean nacked = false;
        try (SimpleConsumer consumer = consumer(group, "normal", expression)) {
            long until = System.currentTimeMillis() + 60_000;
            while (found.size() < count && System.currentTimeMillis() < until) {
                for (MessageView message : consumer.receive(16, Duration.ofSeconds(20))) {
                    if (nackFirst && !nacked) {
                        nacked = true;
                        consumer.changeInvisibleDuration(message, Duration.ofSeconds(1));
                        continue;
                    }
                    consumer.ack(message);
                    found.add(text(message));
                }
            }
        }
        say(name + " " + String.join(",", found));
    }

    static void push() throws Exception {
        ConcurrentLinkedQueue<String> seen = new ConcurrentLinkedQueue<>();
        CountDownLatch done = new CountDownLatch(8);
        try (Producer producer = producer("normal");
             PushConsumer ignored = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
                 .setConsumerGroup("java-push").setSubscriptionExpressions(
                     Collections.singletonMap("normal", new FilterExpression("push")))
                 .setMessageListener(message -> {
                     if (text(message).equals("p3") && message.getDeliveryAttempt() == 1) {
                         return ConsumeResult.FAILURE;
                     }
                     seen.add(text(message) + "/" + message.getDeliveryAttempt());
                     done.countDown();
                     return ConsumeResult.SUCCESS;
                 }).build()) {
            for (int n = 0; n < 8; n++) {
                producer.send(message("normal", "p" + n).setTag("push").build());
            }
            done.await(90, TimeUnit.SECONDS);
            say("pushed " + String.join(",", new java.util.TreeSet<>(seen)));
            Thread.sleep(500);  // for the acknowledgements; a close would wait for a long poll
            System.exit(0);
        }
    }

    static void ordered() throws Exception {
        Map<String, List<String>> seen = new ConcurrentHashMap<>();
        CountDownLatch done = new CountDownLatch(20);
        try (Producer producer = producer("ordered")) {
            for (int n = 0; n < 20; n++) {
                producer.send(message("ordered", "o" + n).setMessageGroup(n % 2 == 0 ? "a" : "b").build());
            }
        }
        try (PushConsumer ignored = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup("java-ordered").setSubscriptionExpressions(
                    Collections.singletonMap("ordered", FilterExpression.SUB_ALL))
                .setMessageListener(message -> {
                    seen.computeIfAbsent(message.getMessageGroup().orElse("?"),
                        k -> Collections.synchronizedList(new java.util.ArrayList<>())).add(text(message));
                    done.countDown();
                    return ConsumeResult.SUCCESS;
                }).build()) {
            done.await(90, TimeUnit.SECONDS);
            for (String group : Arrays.asList("a", "b")) {
                say(group + " " + String.join(",", seen.getOrDefault(group, Collections.emptyList())));
            }
            System.exit(0);
        }
    }

    static void delay() throws Exception {
        long begun = System.currentTimeMillis();
        try (Producer producer = producer("later"); SimpleConsumer consumer =
                consumer("java-later", "later", FilterExpression.SUB_ALL)) {
            producer.send(message("later", "later").setDeliveryTimestamp(begun + 3000).build());
            List<MessageView> found = Collections.emptyList();
            while (found.isEmpty() && System.currentTimeMillis() < begun + 60_000) {
                found = consumer.receive(1, Duration.ofSeconds(20));
            }
            for (MessageView message : found) {
                consumer.ack(message);
                say(text(message) + " " + (System.currentTimeMillis() >= begun + 2900));
            }
        }
    }

    static void transactions() throws Exception {
        CountDownLatch checked = new CountDownLatch(1);
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
                .setTopics("half").setTransactionChecker(message -> {
                    say("check " + text(message));
                    checked.countDown();
                    return TransactionResolution.COMMIT;
                }).build()) {
            for (String body : Arrays.asList("commit", "rollback", "orphan")) {
                Transaction transaction = producer.beginTransaction();
                producer.send(message("half", body).build(), transaction);
                if (body.equals("commit")) {
                    transaction.commit();
                } else if (body.equals("rollback")) {
                    transaction.rollback();
                }
            }
            checked.await(60, TimeUnit.SECONDS);
            java.util.TreeSet<String> found = new java.util.TreeSet<>();
            try (SimpleConsumer consumer = consumer("java-half", "half", FilterExpression.SUB_ALL)) {
                long until = System.currentTimeMillis() + 60_000;
                while (found.size() < 2 && System.currentTimeMillis() < until) {
                    for (MessageView message : consumer.receive(16, Duration.ofSeconds(20))) {
                        consumer.ack(message);
                        found.add(text(message));
                    }
                }
            }
            say("committed " + String.join(",", found));
        }
    }

    static void dead() throws Exception {
        ConcurrentLinkedQueue<Integer> attempts = new ConcurrentLinkedQueue<>();
        CountDownLatch done = new CountDownLatch(2);
        try (Producer producer = producer("dead");
             PushConsumer ignored = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
                 .setConsumerGroup("java-dead").setSubscriptionExpressions(
                     Collections.singletonMap("dead", FilterExpression.SUB_ALL))
                 .setMessageListener(message -> {
                     attempts.add(message.getDeliveryAttempt());
                     done.countDown();
                     return ConsumeResult.FAILURE;
                 }).build();
             SimpleConsumer letters = consumer("java-letters", "%DLQ%java-dead", FilterExpression.SUB_ALL)) {
            producer.send(message("dead", "dies").build());
            done.await(60, TimeUnit.SECONDS);
            long until = System.currentTimeMillis() + 60_000;
            List<MessageView> found = Collections.emptyList();
            while (found.isEmpty() && System.currentTimeMillis() < until) {
                found = letters.receive(16, Duration.ofSeconds(20));
            }
            say("attempts " + attempts + " letters " + found.stream().map(GrpcClients::text).toList());
            System.exit(0);
        }
    }
}
