import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.message.*;
import java.util.*;
import java.util.concurrent.locks.LockSupport;

/**
 * How long a send takes at a steady rate. Args: NAMESRV TOPIC PER_S WARM_S SECONDS BODY
 * One thread sends a message when it is due and waits for the answer; a time runs from the moment at which its message was due, so a send
 * that waits behind a slow one counts whole. Prints a line: sends, p50, p99, max in microseconds.
 */
public class SendLatency {
  public static void main(String[] a) throws Exception {
    DefaultMQProducer p = new DefaultMQProducer("send_latency"); p.setNamesrvAddr(a[0]); p.start();
    int perS = Integer.parseInt(a[2]), warm = perS * Integer.parseInt(a[3]), n = perS * Integer.parseInt(a[4]);
    byte[] body = new byte[Integer.parseInt(a[5])];
    Arrays.fill(body, (byte) 'x');
    long[] took = new long[n];
    long began = System.nanoTime(), step = 1_000_000_000L / perS;
    for (int i = -warm; i < n; i++) {
      long due = began + (i + warm) * step;
      for (long left; (left = due - System.nanoTime()) > 0; ) LockSupport.parkNanos(left);
      Message m = new Message(a[1], "tag", "key" + i, body);
      SendResult r = p.send(m);
      if (r.getSendStatus() != SendStatus.SEND_OK) throw new IllegalStateException(r.toString());
      if (i >= 0) took[i] = System.nanoTime() - due;
    }
    Arrays.sort(took);
    System.out.printf("sends=%d p50=%.1f p99=%.1f max=%.1f%n", n, took[n / 2] / 1e3, took[n * 99 / 100] / 1e3, took[n - 1] / 1e3);
    p.shutdown(); System.exit(0);
  }
}
