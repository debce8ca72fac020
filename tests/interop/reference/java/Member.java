import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;
import java.util.*;

/** One member of a push group: a line "QUEUE BODY" for each message, "ready" first, until its input ends. Args: NAMESRV GROUP TOPIC [orderly] */
public class Member {
  public static void main(String[] a) throws Exception {
    DefaultMQPushConsumer c = new DefaultMQPushConsumer(a[1]); c.setNamesrvAddr(a[0]);
    c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET); c.subscribe(a[2], "*"); c.setPersistConsumerOffsetInterval(500);
    if (a.length > 3) c.registerMessageListener((MessageListenerOrderly) (ms, x) -> { print(ms); return ConsumeOrderlyStatus.SUCCESS; });
    else c.registerMessageListener((MessageListenerConcurrently) (ms, x) -> { print(ms); return ConsumeConcurrentlyStatus.CONSUME_SUCCESS; });
    c.start(); System.out.println("ready"); System.out.flush();
    while (System.in.read() >= 0) { }
    c.shutdown(); System.exit(0);
  }
  static synchronized void print(List<MessageExt> ms) { for (MessageExt m : ms) System.out.println(m.getQueueId() + " " + new String(m.getBody())); System.out.flush(); }
}
