import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;

/** Sends timers with one unique key and one time to two topics, and takes that of the first one back. */
public class Recall {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("recaller");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        long due = System.currentTimeMillis() / 1000 * 1000 + Long.parseLong(args[3]) * 1000 + 500;
        String handle = null;
        for (String topic : new String[] {args[1], args[2]}) {
            Message message = new Message(topic, topic.getBytes());
            message.setDeliverTimeMs(due);
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "7F0000010001000000000000000000AA");
            SendResult result = producer.send(message);
            System.out.println("sent " + result.getSendStatus());
            if (handle == null) handle = result.getRecallHandle();
        }
        System.out.println("recalled " + producer.recallMessage(args[1], handle));
        try {
            producer.recallMessage(args[2], handle);
            System.out.println("other recalled");
        } catch (Exception error) {
            System.out.println("other refused");
        }
        producer.shutdown();
    }
}
