import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.common.message.*;
import java.io.*;
import java.util.*;

/**
 * The pull consumer of the reference as a user would copy a topic with it. Args: NAMESRV TOPIC MOST BATCH OUT
 * Pulls up to MOST messages of the topic, BATCH at a time, queue by queue, and writes each to the file OUT: topic, queue id, queue offset,
 * store time, properties and body, each text and body behind its length. Prints lines "name value": messages, bytes (of the log), seconds.
 */
public class PullToFile {
  @SuppressWarnings("deprecation")
  public static void main(String[] a) throws Exception {
    DefaultMQPullConsumer c = new DefaultMQPullConsumer("pull_to_file"); c.setNamesrvAddr(a[0]); c.start();
    long most = Long.parseLong(a[2]), count = 0, bytes = 0; int batch = Integer.parseInt(a[3]);
    Set<MessageQueue> queues = c.fetchSubscribeMessageQueues(a[1]);
    long began = System.nanoTime();
    try (DataOutputStream out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(a[4]), 1 << 20))) {
      for (MessageQueue q : queues) {
        for (long at = c.minOffset(q); count < most; ) {
          PullResult r = c.pull(q, "*", at, batch);
          if (r.getPullStatus() != PullStatus.FOUND) break;
          at = r.getNextBeginOffset();
          for (MessageExt m : r.getMsgFoundList()) {
            out.writeUTF(m.getTopic()); out.writeInt(m.getQueueId()); out.writeLong(m.getQueueOffset()); out.writeLong(m.getStoreTimestamp());
            out.writeUTF(MessageDecoder.messageProperties2String(m.getProperties()));
            out.writeInt(m.getBody().length); out.write(m.getBody());
            count++; bytes += m.getStoreSize();
          }
        }
      }
    }
    double seconds = (System.nanoTime() - began) / 1e9;
    System.out.println("messages " + count); System.out.println("bytes " + bytes); System.out.println("seconds " + seconds);
    c.shutdown(); System.exit(0);
  }
}
