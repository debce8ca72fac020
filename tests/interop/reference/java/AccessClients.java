import org.apache.rocketmq.acl.common.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import java.io.*;
import java.util.*;
import java.util.concurrent.*;

/**
 * Clients and mqadmin with credentials.
 * clients NAMESRV TOPIC GROUP N USER PASSWORD   sends N messages and consumes them, some twice: lines "name value"
 * admin USER PASSWORD   runs the commands of mqadmin on its input, one a line, after each a line "done"
 */
public class AccessClients {
  static void say(String name, Object value) { System.out.println(name + " " + value); }
  static RPCHook hook(String user, String password) { return new AclClientRPCHook(new SessionCredentials(user, password)); }

  public static void main(String[] a) throws Exception {
    if (a[0].equals("admin")) admin(a); else clients(a);
    System.exit(0);
  }

  static void admin(String[] a) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      MQAdminStartup.main0(line.trim().split(" +"), hook(a[1], a[2]));
      System.out.println(); say("done", line); System.out.flush();
    }
  }

  static void clients(String[] a) throws Exception {
    String namesrv = a[1], topic = a[2], group = a[3], user = a[5], password = a[6]; int n = Integer.parseInt(a[4]);
    DefaultMQProducer p = new DefaultMQProducer("access_p", hook(user, password)); p.setNamesrvAddr(namesrv); p.setSendMsgTimeout(10000); p.setRetryTimesWhenSendFailed(0); p.start();
    try { for (int i = 0; i < n; i++) p.send(new Message(topic, "a", ("körper " + i).getBytes("UTF-8"))); say("sent", n); }
    catch (MQClientException e) { Throwable c = e.getCause() == null ? e : e.getCause(); say("refused", c instanceof MQBrokerException ? ((MQBrokerException) c).getResponseCode() : e.getResponseCode()); say("remark", c.getMessage()); return; }
    catch (MQBrokerException e) { say("refused", e.getResponseCode()); say("remark", e.getErrorMessage()); return; }
    List<Message> batch = new ArrayList<>(); for (int i = 0; i < 3; i++) batch.add(new Message(topic, "a", "batch".getBytes())); p.send(batch); say("batch", 3);
    Set<String> got = ConcurrentHashMap.newKeySet(); Set<String> again = ConcurrentHashMap.newKeySet();
    DefaultMQPushConsumer c = new DefaultMQPushConsumer(group, hook(user, password), new AllocateMessageQueueAveragely()); c.setNamesrvAddr(namesrv); c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); c.subscribe(topic, "*");
    c.registerMessageListener((MessageListenerConcurrently) (ms, x) -> {
      for (MessageExt m : ms) { if (m.getReconsumeTimes() > 0) again.add(m.getMsgId()); if (m.getReconsumeTimes() == 0 && got.add(m.getMsgId()) && got.size() == 1) { x.setDelayLevelWhenNextConsume(1); return ConsumeConcurrentlyStatus.RECONSUME_LATER; } } return ConsumeConcurrentlyStatus.CONSUME_SUCCESS; });
    c.start();
    long end = System.currentTimeMillis() + 60000; while (System.currentTimeMillis() < end && (got.size() < n + 3 || again.isEmpty())) {
      Thread.sleep(500); // the route of the new retry topic is looked up now, not after 30 s
      c.getDefaultMQPushConsumerImpl().getmQClientFactory().updateTopicRouteInfoFromNameServer(); c.getDefaultMQPushConsumerImpl().getmQClientFactory().rebalanceImmediately();
    }
    say("consumed", got.size()); say("again", again.size() > 0);
    c.shutdown(); p.shutdown();
  }
}
