import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * A consumer that replies and a producer that asks N times, then a reply to nobody.
 * Args: NAMESRV TOPIC N [USER PASSWORD of the producer that asks, USER PASSWORD of the consumer that replies]
 */
public class RequestReply {
    public static void main(String[] args) {
        try {
            run(args);
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    static void run(String[] args) throws Exception {
        RPCHook asks = args.length > 3 ? AccessClients.hook(args[3], args[4]) : null;
        RPCHook replies = args.length > 3 ? AccessClients.hook(args[5], args[6]) : null;
        DefaultMQProducer answerer = producer(args[0], "answerers", replies);
        if (replies == null) answerer.send(new Message(args[1], "the topic is there before its consumer".getBytes()));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(null, "answerers_c", replies);
        consumer.setNamesrvAddr(args[0]);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (MessageUtil.getReplyToClient(message) == null) continue;
                try {
                    Message reply = MessageUtil.createReplyMessage(message, ("re:" + new String(message.getBody())).getBytes());
                    System.out.println("reply " + answerer.send(reply, 10_000).getSendStatus());
                } catch (Exception error) {
                    System.out.println("reply " + error);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer asker = producer(args[0], "askers", asks);
        for (int i = 0; i < Integer.parseInt(args[2]); i++) {
            Message answer = asker.request(new Message(args[1], String.valueOf(i).getBytes()), 20_000);
            System.out.println("got " + new String(answer.getBody()) + " " + answer.getTopic());
        }
        Message nobody = new Message("DefaultCluster_REPLY_TOPIC", "x".getBytes());
        MessageAccessor.putProperty(nobody, MessageConst.PROPERTY_MESSAGE_TYPE, "reply");
        MessageAccessor.putProperty(nobody, MessageConst.PROPERTY_MESSAGE_REPLY_TO_CLIENT, "nobody");
        try {
            answerer.send(nobody);
            System.out.println("nobody took it");
        } catch (MQClientException error) {
            MQBrokerException cause = (MQBrokerException) error.getCause();
            System.out.println("nobody " + cause.getResponseCode() + " " + cause.getErrorMessage());
        }
    }

    static DefaultMQProducer producer(String namesrv, String group, RPCHook hook) throws Exception {
        DefaultMQProducer made = new DefaultMQProducer(group, hook);
        made.setNamesrvAddr(namesrv);
        made.setInstanceName(group);
        made.setSendMsgTimeout(10_000);
        made.start();
        return made;
    }
}
