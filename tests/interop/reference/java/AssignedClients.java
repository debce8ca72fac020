import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import java.util.*;
import java.util.concurrent.*;

/**
 * Two members of a push group with clientRebalance=false, whose queues the broker allocates: lines "name value". Args: NAMESRV TOPIC N
 */
public class AssignedClients {
  // A client whose heartbeat collides with its rebalance is told by the broker that its subscription is not the latest,
  // and pulls nothing until its next heartbeat, 30 s later.
  static final long PATIENCE = 90000;
  static void say(String name, Object value) { System.out.println(name + " " + value); System.err.println(name + " " + value); }
  static boolean until(Callable<Boolean> f, long ms) throws Exception { long end = System.currentTimeMillis() + ms; while (System.currentTimeMillis() < end) { if (f.call()) return true; Thread.sleep(20); } return f.call(); }
  static Set<Integer> queues(DefaultMQPushConsumer c, String topic) {
    Set<Integer> found = new TreeSet<>();
    for (MessageQueue q : c.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) if (q.getTopic().equals(topic)) found.add(q.getQueueId());
    return found;
  }

  public static void main(String[] a) throws Exception {
    String namesrv = a[0], topic = a[1]; int n = Integer.parseInt(a[2]);
    DefaultMQProducer p = new DefaultMQProducer("assigned_p"); p.setNamesrvAddr(namesrv); p.setSendMsgTimeout(10000); p.start();
    for (int i = 0; i < 4; i++) p.send(new Message(topic, "a", "first".getBytes()));
    Map<String, Set<String>> got = new ConcurrentHashMap<>(); Set<String> again = ConcurrentHashMap.newKeySet();
    List<DefaultMQPushConsumer> both = new ArrayList<>();
    for (String name : new String[] {"one", "two"}) {
      got.put(name, ConcurrentHashMap.newKeySet());
      DefaultMQPushConsumer c = new DefaultMQPushConsumer("assigned_c"); c.setNamesrvAddr(namesrv); c.setInstanceName(name); c.setClientRebalance(false);
      c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); c.subscribe(topic, "*");
      c.registerMessageListener((MessageListenerConcurrently) (ms, x) -> {
        for (MessageExt m : ms) {
          got.get(name).add(m.getMsgId());
          if (new String(m.getBody()).equals("retry") && m.getReconsumeTimes() == 0) return ConsumeConcurrentlyStatus.RECONSUME_LATER;
          if (m.getReconsumeTimes() > 0) again.add(m.getMsgId());
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS; });
      c.start(); both.add(c);
    }
    DefaultMQPushConsumer one = both.get(0), two = both.get(1);
    say("shared", until(() -> queues(one, topic).size() == 2 && queues(two, topic).size() == 2, PATIENCE));
    Set<Integer> common = queues(one, topic); common.retainAll(queues(two, topic)); say("apart", common.isEmpty());
    for (int i = 0; i < n; i++) p.send(new Message(topic, "a", String.valueOf(i).getBytes()));
    say("all", until(() -> { Set<String> all = new HashSet<>(got.get("one")); all.addAll(got.get("two")); return all.size() == n + 4; }, PATIENCE));
    p.send(new Message(topic, "a", "retry".getBytes()));
    say("retried", until(() -> again.size() == 1, PATIENCE));
    two.shutdown();
    say("takes-over", until(() -> queues(one, topic).size() == 4, PATIENCE));
    one.shutdown(); p.shutdown(); say("done", true); System.exit(0);
  }
}
