import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends N transactional messages PREFIX0 ... in turn committed, rolled back, and twice left open; then answers
 * checks for SECONDS: a message whose body matches COMMITTED is committed, others stay open.
 * Args: NAMESRV TOPIC PREFIX N SECONDS COMMITTED
 */
public class Transactions {
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
        TransactionMQProducer producer = new TransactionMQProducer("tellers");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message message, Object number) {
                switch ((Integer) number % 4) {
                    case 0: return LocalTransactionState.COMMIT_MESSAGE;
                    case 1: return LocalTransactionState.ROLLBACK_MESSAGE;
                    default: return LocalTransactionState.UNKNOW;
                }
            }

            @Override public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String body = new String(message.getBody());
                System.out.println("check " + body + " " + message.getTopic() + " " + message.getTransactionId().equals(
                    message.getUserProperty("UNIQ_KEY")));
                return body.matches(args[5]) ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
        producer.getDefaultMQProducerImpl().getmQClientFactory().updateTopicRouteInfoFromNameServer(args[1]);
        for (int i = 0; i < Integer.parseInt(args[3]); i++) {
            Message message = new Message(args[1], "tag", args[2] + i, (args[2] + i).getBytes());
            TransactionSendResult sent = producer.sendMessageInTransaction(message, i);
            System.out.println("sent " + args[2] + i + " " + sent.getSendStatus() + " " + sent.getLocalTransactionState());
        }
        producer.getDefaultMQProducerImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
        TimeUnit.SECONDS.sleep(Long.parseLong(args[4]));
        producer.shutdown();
    }
}
