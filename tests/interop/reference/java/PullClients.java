import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.message.*;
import java.util.*;
import java.util.concurrent.*;

/**
 * The two consumers of the reference that pull, against a name server: every figure is printed as a line "name value". Args: NAMESRV TOPIC N
 * N messages go into one queue each in turn, half of them with tag even, half with tag odd, bodies "0" to "N-1".
 */
public class PullClients {
  static void say(String name, Object value) { System.out.println(name + " " + value); }
  static Set<Integer> bodies(Collection<? extends Message> ms) { TreeSet<Integer> s = new TreeSet<>(); for (Message m : ms) s.add(Integer.parseInt(new String(m.getBody()))); return s; }

  public static void main(String[] a) throws Exception {
    String namesrv = a[0], topic = a[1]; int n = Integer.parseInt(a[2]);
    DefaultMQProducer producer = new DefaultMQProducer("pull_clients_p"); producer.setNamesrvAddr(namesrv); producer.setSendMsgTimeout(10000); producer.start();
    SendResult last = null;
    for (int i = 0; i < n; i++) last = producer.send(new Message(topic, i % 2 == 0 ? "even" : "odd", "k" + i, String.valueOf(i).getBytes()));
    pull(namesrv, topic, n, producer, last);
    lite(namesrv, topic, n);
    producer.shutdown();
    say("done", true); System.exit(0);
  }

  @SuppressWarnings("deprecation")
  static void pull(String namesrv, String topic, int n, DefaultMQProducer producer, SendResult last) throws Exception {
    DefaultMQPullConsumer c = new DefaultMQPullConsumer("pull_clients_c"); c.setNamesrvAddr(namesrv); c.setMessageModel(org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel.CLUSTERING); c.start();
    Set<MessageQueue> queues = c.fetchSubscribeMessageQueues(topic); say("queues", queues.size());
    List<MessageExt> all = new ArrayList<>(), odd = new ArrayList<>(); long max = 0, min = 0;
    long end = System.currentTimeMillis() + 20000;
    do { max = 0; for (MessageQueue q : queues) max += c.maxOffset(q); } while (max < n && System.currentTimeMillis() < end);
    for (MessageQueue q : queues) {
      min += c.minOffset(q);
      for (String tag : new String[] {"*", "odd"}) {
        long at = 0;
        for (boolean more = true; more; ) {
          PullResult r = c.pull(q, tag, at, 5);
          if (r.getPullStatus() == PullStatus.FOUND) (tag.equals("*") ? all : odd).addAll(r.getMsgFoundList());
          more = r.getPullStatus() == PullStatus.FOUND || r.getPullStatus() == PullStatus.NO_MATCHED_MSG;
          at = r.getNextBeginOffset();
        }
        say("end", at == c.maxOffset(q));
      }
      say("illegal", c.pull(q, "*", c.maxOffset(q) + 7, 5).getPullStatus());
      c.updateConsumeOffset(q, c.maxOffset(q)); 
      say("by-time", c.searchOffset(q, 0) == 0);
    }
    c.getDefaultMQPullConsumerImpl().getOffsetStore().persistAll(new HashSet<>(queues));
    say("max", max); say("min", min); say("all", bodies(all)); say("odd", bodies(odd));
    // Of a static topic the result of a send names the broker, and its queues have another name.
    MessageQueue one = queues.stream().filter(q -> q.getQueueId() == last.getMessageQueue().getQueueId()).findFirst().get();
    long until = c.maxOffset(one), deadline = System.currentTimeMillis() + 10000;
    while (c.fetchConsumeOffset(one, true) != until && System.currentTimeMillis() < deadline) Thread.sleep(50);
    say("committed", c.fetchConsumeOffset(one, true) == until);
    say("by-id", new String(c.viewMessage(topic, last.getOffsetMsgId()).getBody()).equals(String.valueOf(n - 1)));
    say("by-key", c.queryMessage(topic, "k0", 8, 0, Long.MAX_VALUE).getMessageList().size());
    // A pull that finds nothing waits on the broker, and an arrival answers it.
    ExecutorService later = Executors.newSingleThreadExecutor();
    long began = System.nanoTime();
    Future<PullResult> waiting = later.submit(() -> c.pullBlockIfNotFound(one, "late", until, 5));
    Thread.sleep(1500);
    say("waits", !waiting.isDone());
    producer.send(new Message(topic, "late", "", "-1".getBytes()), one);
    PullResult found = waiting.get(20, TimeUnit.SECONDS);
    say("woken", found.getPullStatus() + " " + bodies(found.getMsgFoundList()));
    say("woken-in-time", (System.nanoTime() - began) / 1000000 < 4000);
    later.shutdown(); c.shutdown();
  }

  static void lite(String namesrv, String topic, int n) throws Exception {
    DefaultLitePullConsumer c = new DefaultLitePullConsumer("pull_clients_l"); c.setNamesrvAddr(namesrv); c.setAutoCommit(false);
    c.setConsumeFromWhere(org.apache.rocketmq.common.consumer.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); c.subscribe(topic, "even"); c.start();
    List<MessageExt> got = poll(c, (n + 1) / 2); say("lite-even", bodies(got));
    c.commitSync(); 
    long sum = 0, deadline = System.currentTimeMillis() + 10000;
    while (sum < n / 2 && System.currentTimeMillis() < deadline) { Thread.sleep(100); c.commitSync(); sum = 0; for (MessageQueue q : c.assignment()) sum += Math.max(0, c.committed(q)); }
    say("lite-committed", sum); say("lite-assigned", c.assignment().size()); c.shutdown();
    DefaultLitePullConsumer b = new DefaultLitePullConsumer("pull_clients_a"); b.setNamesrvAddr(namesrv); b.setAutoCommit(false); b.start();
    Collection<MessageQueue> queues = b.fetchMessageQueues(topic); b.assign(queues);
    for (MessageQueue q : queues) b.seekToBegin(q);
    say("assign-all", bodies(poll(b, n + 1)).size());
    MessageQueue first = queues.iterator().next(); b.seek(first, 1); b.pause(new ArrayList<>(others(queues, first)));
    say("assign-seek", poll(b, 1).get(0).getQueueOffset()); b.shutdown();
  }

  static List<MessageQueue> others(Collection<MessageQueue> queues, MessageQueue one) { List<MessageQueue> o = new ArrayList<>(queues); o.remove(one); return o; }
  static List<MessageExt> poll(DefaultLitePullConsumer c, int wanted) {
    List<MessageExt> got = new ArrayList<>(); long end = System.currentTimeMillis() + 30000;
    while (got.size() < wanted && System.currentTimeMillis() < end) got.addAll(c.poll(500));
    return got;
  }
}
