import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Its consumers with expressions of SQL92: SqlClients NAMESRV TOPIC N. Message i has i=i, even=true|false and color. */
public class SqlClients {
  static void say(String name, Object value) { System.out.println(name + " " + value); }
  static int number(MessageExt m) { return Integer.parseInt(new String(m.getBody())); }

  static void send(DefaultMQProducer producer, String topic, int from, int until) throws Exception {
    for (int i = from; i < until; i++) {
      Message m = new Message(topic, "t" + i % 3, String.valueOf(i).getBytes());
      m.putUserProperty("i", String.valueOf(i)); m.putUserProperty("even", String.valueOf(i % 2 == 0));
      if (i % 5 == 0) m.putUserProperty("color", "r\u00f6d");
      producer.send(m);
    }
  }

  static boolean within(java.util.function.BooleanSupplier done, int ms) throws Exception {
    for (long end = System.currentTimeMillis() + ms; System.currentTimeMillis() < end; Thread.sleep(20)) if (done.getAsBoolean()) return true;
    return false;
  }

  public static void main(String[] a) throws Exception {
    Thread.currentThread().setUncaughtExceptionHandler((t, e) -> { e.printStackTrace(); System.exit(1); });
    String namesrv = a[0], topic = a[1]; int n = Integer.parseInt(a[2]);
    DefaultMQProducer producer = new DefaultMQProducer("sql_clients_p"); producer.setNamesrvAddr(namesrv); producer.setSendMsgTimeout(10000); producer.start();
    send(producer, topic, 0, n);
    Set<Integer> pushed = new ConcurrentSkipListSet<>();
    DefaultMQPushConsumer push = new DefaultMQPushConsumer("sql_clients_c"); push.setNamesrvAddr(namesrv); push.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    push.subscribe(topic, MessageSelector.bySql("i BETWEEN 3 AND 1000 AND even = TRUE AND color IS NULL AND TAGS IN ('t1', 't2')"));
    push.registerMessageListener((MessageListenerConcurrently) (ms, c) -> { ms.forEach(m -> pushed.add(number(m))); return ConsumeConcurrentlyStatus.CONSUME_SUCCESS; });
    push.start();
    TreeSet<Integer> wanted = new TreeSet<>();
    for (int i = 3; i < n; i++) if (i % 2 == 0 && i % 5 != 0 && i % 3 != 0) wanted.add(i);
    within(() -> pushed.size() >= wanted.size(), 90000);
    say("pushed", new TreeSet<>(pushed).equals(wanted));
    Thread.sleep(1000);  // now all pulls are held
    long began = System.currentTimeMillis();
    send(producer, topic, n, n + 10);
    for (int i = n; i < n + 10; i++) if (i % 2 == 0 && i % 5 != 0 && i % 3 != 0) wanted.add(i);
    within(() -> pushed.size() >= wanted.size(), 90000);
    say("woken", new TreeSet<>(pushed).equals(wanted) && System.currentTimeMillis() - began < 3000);
    push.shutdown();

    DefaultLitePullConsumer lite = new DefaultLitePullConsumer("sql_clients_l"); lite.setNamesrvAddr(namesrv); lite.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    lite.subscribe(topic, MessageSelector.bySql("color STARTSWITH 'r\u00f6' AND NOT (i < 5)")); lite.start();
    TreeSet<Integer> polled = new TreeSet<>(); int most = (n + 10 + 4) / 5 - 1;
    for (long end = System.currentTimeMillis() + 90000; polled.size() < most && System.currentTimeMillis() < end; ) lite.poll(500).forEach(m -> polled.add(number(m)));
    say("polled", polled.size() == most && polled.first() == 5 && polled.stream().allMatch(i -> i % 5 == 0)); lite.shutdown();

    DefaultMQPullConsumer pull = new DefaultMQPullConsumer("sql_clients_d"); pull.setNamesrvAddr(namesrv); pull.start();
    TreeSet<Integer> pulled = new TreeSet<>(); Set<MessageQueue> queues = pull.fetchSubscribeMessageQueues(topic);
    // It learns the version of a broker, which it checks first, from the answer to a heartbeat.
    for (MessageQueue q : queues) pull.maxOffset(q);
    var client = pull.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
    within(() -> client.sendHeartbeatToAllBrokerWithLock() && client.findBrokerAddressInSubscribe(queues.iterator().next().getBrokerName(), 0, false).getBrokerVersion() > 0, 20000);
    for (MessageQueue q : queues) {
      for (long at = 0, end = pull.maxOffset(q); at < end; ) {
        PullResult r = pull.pull(q, MessageSelector.bySql("i = 7 OR i = '8' OR color = 'none'"), at, 32); at = r.getNextBeginOffset();
        if (r.getMsgFoundList() != null) r.getMsgFoundList().forEach(m -> pulled.add(number(m)));
      }
    }
    say("pulled", pulled); pull.shutdown();

    DefaultMQPushConsumer bad = new DefaultMQPushConsumer("sql_clients_b"); bad.setNamesrvAddr(namesrv);
    bad.subscribe(topic, MessageSelector.bySql("i > 'x'"));
    bad.registerMessageListener((MessageListenerConcurrently) (ms, c) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
    try { bad.start(); say("refused", "no"); } catch (MQClientException e) { say("refused", e.getResponseCode()); }
    producer.shutdown(); say("done", true); System.exit(0);
  }
}
