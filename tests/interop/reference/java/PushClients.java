import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import java.util.*;
import java.util.concurrent.*;

/**
 * Two members of one push group with heartbeats of version 2, then one alone, then an orderly group: lines "name value". Args: NAMESRV TOPIC N
 */
public class PushClients {
  static final long BEGIN = System.currentTimeMillis();
  static void say(String name, Object value) { System.out.println(name + " " + value); tell(name + " " + value); }
  /** What happened when, for whoever reads why a line said false. */
  static void tell(String what) { System.err.println(System.currentTimeMillis() - BEGIN + " ms " + what); }

  static DefaultMQPushConsumer member(String namesrv, String group, String topic, String instance, MessageListener listener) throws Exception {
    DefaultMQPushConsumer c = new DefaultMQPushConsumer(group); c.setNamesrvAddr(namesrv); c.setInstanceName(instance); c.setUseHeartbeatV2(true); c.setHeartbeatBrokerInterval(1000);
    c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); c.subscribe(topic, "a || b");
    if (listener instanceof MessageListenerOrderly) c.registerMessageListener((MessageListenerOrderly) listener); else c.registerMessageListener((MessageListenerConcurrently) listener);
    c.start(); return c;
  }
  static boolean until(Callable<Boolean> f, long ms) throws Exception { long end = System.currentTimeMillis() + ms; while (System.currentTimeMillis() < end) { if (f.call()) return true; Thread.sleep(20); } return f.call(); }

  public static void main(String[] a) throws Exception {
    String namesrv = a[0], topic = a[1]; int n = Integer.parseInt(a[2]);
    DefaultMQProducer p = new DefaultMQProducer("push_clients_p"); p.setNamesrvAddr(namesrv); p.setSendMsgTimeout(10000); p.start();
    for (int i = 0; i < 4; i++) p.send(new Message(topic, "a", "first".getBytes()));
    Map<String, Set<String>> got = new ConcurrentHashMap<>(); got.put("one", ConcurrentHashMap.newKeySet()); got.put("two", ConcurrentHashMap.newKeySet());
    Set<Integer>[] from = new Set[] {ConcurrentHashMap.newKeySet(), ConcurrentHashMap.newKeySet()};
    List<DefaultMQPushConsumer> both = new ArrayList<>();
    for (String name : new String[] {"one", "two"}) both.add(member(namesrv, "push_clients_c", topic, name, (MessageListenerConcurrently) (ms, x) -> {
      for (MessageExt m : ms) { tell(name + " got queue " + m.getQueueId() + " offset " + m.getQueueOffset() + " again " + m.getReconsumeTimes() + " " + m.getMsgId()); got.get(name).add(m.getMsgId()); from[name.equals("one") ? 0 : 1].add(m.getQueueId()); } return ConsumeConcurrentlyStatus.CONSUME_SUCCESS; }));
    // Both know of each other at once (request 40), not after the 20 s of the next rebalance.
    say("shared", until(() -> both.get(0).getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().size() - retry(both.get(0)) == 2 && both.get(1).getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().size() - retry(both.get(1)) == 2, 12000));
    Thread.sleep(3500); // several heartbeats without subscriptions
    from[0].clear(); from[1].clear();
    for (int i = 0; i < n; i++) p.send(new Message(topic, i % 3 == 0 ? "c" : i % 3 == 1 ? "a" : "b", String.valueOf(i).getBytes()));
    int wanted = 4 + n - (n + 2) / 3;
    say("all", until(() -> got.get("one").size() + got.get("two").size() >= wanted, 90000) && got.get("one").size() + got.get("two").size() == wanted);
    Set<Integer> common = new HashSet<>(from[0]); common.retainAll(from[1]); say("apart", common.isEmpty() && !from[0].isEmpty() && !from[1].isEmpty());
    both.get(1).shutdown();
    say("takes-over", until(() -> both.get(0).getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().size() - retry(both.get(0)) == 4, 12000));
    int before = got.get("one").size();
    for (int i = 0; i < 8; i++) p.send(new Message(topic, "b", "alone".getBytes()));
    say("alone", until(() -> got.get("one").size() == before + 8, 90000));
    both.get(0).shutdown();
    orderly(namesrv, topic + "_ordered", n, p);
    p.shutdown(); say("done", true); System.exit(0);
  }
  static int retry(DefaultMQPushConsumer c) { int r = 0; for (MessageQueue q : c.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) if (q.getTopic().startsWith("%RETRY%")) r++; return r; }

  static void orderly(String namesrv, String topic, int n, DefaultMQProducer p) throws Exception {
    for (int i = 0; i < n; i++) p.send(new Message(topic, "a", String.valueOf(i).getBytes()), (qs, m, key) -> qs.get((Integer) key % qs.size()), i);
    Map<Integer, List<Integer>> seen = new ConcurrentHashMap<>();
    DefaultMQPushConsumer c = member(namesrv, "push_clients_o", topic, "three", (MessageListenerOrderly) (ms, x) -> {
      for (MessageExt m : ms) seen.computeIfAbsent(m.getQueueId(), k -> Collections.synchronizedList(new ArrayList<>())).add(Integer.parseInt(new String(m.getBody()))); return ConsumeOrderlyStatus.SUCCESS; });
    say("ordered-all", until(() -> seen.values().stream().mapToInt(List::size).sum() == n, 90000));
    boolean sorted = true; for (List<Integer> s : seen.values()) for (int i = 1; i < s.size(); i++) sorted &= s.get(i - 1) < s.get(i);
    say("ordered", sorted); c.shutdown();
  }
}
