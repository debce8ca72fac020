import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;

/**
 * Two members of a push group in mode POP: lines "name value". Args: NAMESRV TOPIC N
 */
public class PopClients {
  static void say(String name, Object value) { System.out.println(name + " " + value); System.err.println(name + " " + value); }
  static boolean until(Callable<Boolean> f, long ms) throws Exception { long end = System.currentTimeMillis() + ms; while (System.currentTimeMillis() < end) { if (f.call()) return true; Thread.sleep(20); } return f.call(); }

  public static void main(String[] a) throws Exception {
    String namesrv = a[0], topic = a[1], group = "popped_c"; int n = Integer.parseInt(a[2]);
    DefaultMQProducer p = new DefaultMQProducer("popped_p"); p.setNamesrvAddr(namesrv); p.setSendMsgTimeout(10000); p.start();
    p.send(new Message(topic, "a", "first".getBytes()));
    DefaultMQAdminExt admin = new DefaultMQAdminExt(); admin.setNamesrvAddr(namesrv); admin.start();
    String broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next().getBrokerAddrs().get(0L);
    org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig config = new org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig();
    config.setGroupName(group); admin.createAndUpdateSubscriptionGroupConfig(broker, config);
    admin.setMessageRequestMode(broker, topic, group, MessageRequestMode.POP, 0, 10000);
    Map<String, AtomicInteger> got = new ConcurrentHashMap<>(); Set<String> again = ConcurrentHashMap.newKeySet(); AtomicInteger members = new AtomicInteger();
    List<DefaultMQPushConsumer> both = new ArrayList<>();
    for (String name : new String[] {"one", "two"}) {
      AtomicBoolean any = new AtomicBoolean();
      DefaultMQPushConsumer c = new DefaultMQPushConsumer(group); c.setNamesrvAddr(namesrv); c.setInstanceName(name); c.setClientRebalance(false);
      c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); c.subscribe(topic, "a || b"); c.setPopInvisibleTime(10000);
      c.registerMessageListener((MessageListenerConcurrently) (ms, x) -> {
        if (!any.getAndSet(true)) members.incrementAndGet();
        for (MessageExt m : ms) {
          String body = new String(m.getBody());
          if (m.getProperty(MessageConst.PROPERTY_POP_CK) == null) { say("pulled", body); }
          if (body.equals("retry") && m.getReconsumeTimes() == 0) return ConsumeConcurrentlyStatus.RECONSUME_LATER;
          if (m.getReconsumeTimes() > 0) again.add(body);
          got.computeIfAbsent(body, k -> new AtomicInteger()).incrementAndGet();
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS; });
      c.start(); both.add(c);
    }
    say("started", until(() -> got.containsKey("first"), 90000));
    for (int i = 0; i < n; i++) p.send(new Message(topic, i % 3 == 2 ? "c" : i % 2 == 0 ? "a" : "b", String.valueOf(i).getBytes()));
    int wanted = 1; for (int i = 0; i < n; i++) if (i % 3 != 2) wanted++; final int all = wanted;
    say("all", until(() -> got.size() == all, 90000));
    p.send(new Message(topic, "a", "retry".getBytes()));
    say("retried", until(() -> again.contains("retry"), 90000));
    Thread.sleep(16000);
    say("once", got.values().stream().allMatch(c -> c.get() == 1) && got.size() == all + 1);
    both.get(1).shutdown();
    for (int i = n; i < 2 * n; i++) p.send(new Message(topic, "a", String.valueOf(i).getBytes()));
    say("takes-over", until(() -> got.size() == all + 1 + n, 90000));
    both.get(0).shutdown(); p.shutdown(); admin.shutdown(); say("done", true); System.exit(0);
  }
}
