import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import java.util.*;

/**
 * A push group that asks for mode POP on a topic with batch queues, and a batch of three messages for it. Lines: "mode ok" or
 * "mode CODE", then "got popped|pulled OFFSET SYSFLAG BODY" with the body in base64; a popped message fails. Args: NAMESRV TOPIC SECONDS
 */
public class PopBatch {
  static synchronized void say(String line) { System.out.println(line); System.err.println(line); }

  public static void main(String[] a) throws Exception {
    String namesrv = a[0], topic = a[1], group = "pop_batch";
    DefaultMQAdminExt admin = new DefaultMQAdminExt(); admin.setNamesrvAddr(namesrv); admin.start();
    String broker = null;
    for (int i = 0; broker == null && i < 300; i++) {
      try { broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next().getBrokerAddrs().get(0L); }
      catch (Exception e) { Thread.sleep(200); }  // it is not registered yet
    }
    TopicConfig config = new TopicConfig(topic, 1, 1); config.getAttributes().put("+queue.type", "BatchCQ"); admin.createAndUpdateTopicConfig(broker, config);
    SubscriptionGroupConfig g = new SubscriptionGroupConfig(); g.setGroupName(group); admin.createAndUpdateSubscriptionGroupConfig(broker, g);
    try { admin.setMessageRequestMode(broker, topic, group, MessageRequestMode.POP, 0, 10000); say("mode ok"); }
    catch (MQClientException e) { say("mode " + e.getResponseCode()); System.err.println(e.getErrorMessage()); }
    DefaultMQProducer p = new DefaultMQProducer("pop_batch_p"); p.setNamesrvAddr(namesrv); p.setSendMsgTimeout(10000); p.start();
    List<Message> three = new ArrayList<>(); for (int i = 0; i < 3; i++) three.add(new Message(topic, "a", ("body-" + i).getBytes()));
    for (int i = 0; ; i++) { try { p.send(three); break; } catch (Exception e) { if (i == 100) throw e; Thread.sleep(300); } }  // no route yet
    DefaultMQPushConsumer c = new DefaultMQPushConsumer(group); c.setNamesrvAddr(namesrv); c.setClientRebalance(false);
    c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); c.subscribe(topic, "*"); c.setPopInvisibleTime(10000);
    c.registerMessageListener((MessageListenerConcurrently) (ms, x) -> {
      boolean popped = false;
      for (MessageExt m : ms) {
        popped = m.getProperty(MessageConst.PROPERTY_POP_CK) != null;
        say("got " + (popped ? "popped " : "pulled ") + m.getQueueOffset() + " " + m.getSysFlag() + " " + Base64.getEncoder().encodeToString(m.getBody()));
      }
      return popped ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS; });
    c.start(); Thread.sleep(1000 * Long.parseLong(a[2])); c.shutdown(); p.shutdown(); admin.shutdown(); say("over"); System.exit(0);
  }
}
