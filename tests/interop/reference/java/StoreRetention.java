import org.apache.rocketmq.common.*;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.*;
import org.apache.rocketmq.store.stats.*;
import java.net.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.locks.LockSupport;
/** Times puts of the reference at a steady rate, quiet and while it deletes files. Args: DIR FILE_SIZE SEGMENTS BODY PER_S SECONDS */
public class StoreRetention {
  static DefaultMessageStore store;
  static final SocketAddress HOST = new InetSocketAddress("127.0.0.1", 1234);
  static int number;
  static void put(byte[] body) {
    int i = number++;
    MessageExtBrokerInner m = new MessageExtBrokerInner();
    m.setTopic("Topic" + (i % 8)); m.setQueueId((i / 8) % 4); m.setBody(body); m.setTags("t");
    m.setPropertiesString(MessageDecoder.messageProperties2String(m.getProperties()));
    m.setBornHost(HOST); m.setStoreHost(HOST); m.setBornTimestamp(System.currentTimeMillis());
    PutMessageResult r = store.putMessage(m);
    if (!r.isOk()) throw new RuntimeException(r.toString());
  }
  /** Puts at a rate for a time, and on while somebody works; nanoseconds of each. */
  static long[] paced(byte[] body, int perS, int seconds, Thread beside) {
    List<Long> took = new ArrayList<>();
    long began = System.nanoTime(), step = 1_000_000_000L / perS;
    for (long n = 0; System.nanoTime() - began < seconds * 1_000_000_000L || beside != null && beside.isAlive(); n++) {
      long wait = began + n * step - System.nanoTime();
      if (wait > 0) LockSupport.parkNanos(wait);
      long t = System.nanoTime();
      put(body);
      took.add(System.nanoTime() - t);
    }
    long[] a = took.stream().mapToLong(Long::longValue).toArray();
    Arrays.sort(a);
    return a;
  }
  static void print(String what, long[] a) {
    System.out.printf("%s n=%d p50=%.1f p99=%.1f p999=%.1f max=%.1f us%n", what, a.length, a[a.length / 2] / 1e3,
      a[(int) (a.length * 0.99)] / 1e3, a[(int) (a.length * 0.999)] / 1e3, a[a.length - 1] / 1e3);
  }
  public static void main(String[] a) {
    try { run(a); } catch (Throwable t) { t.printStackTrace(); Runtime.getRuntime().halt(1); }
  }
  static void run(String[] a) throws Exception {
    int size = Integer.parseInt(a[1]), segments = Integer.parseInt(a[2]), perS = Integer.parseInt(a[4]), seconds = Integer.parseInt(a[5]);
    MessageStoreConfig c = new MessageStoreConfig();
    c.setStorePathRootDir(a[0]); c.setStorePathCommitLog(a[0] + "/commitlog");
    c.setMappedFileSizeCommitLog(size); c.setHaListenPort(0); c.setTimerWheelEnable(false);
    store = new DefaultMessageStore(c, new BrokerStatsManager("x", false), null, new BrokerConfig(), new ConcurrentHashMap<>());
    if (!store.load()) throw new RuntimeException("load failed");
    store.start();
    byte[] large = new byte[65536], body = new byte[Integer.parseInt(a[3])];
    new Random(1).nextBytes(large); new Random(2).nextBytes(body);
    while (store.getMaxPhyOffset() < (long) size * segments + 1024) put(large);
    while (store.dispatchBehindBytes() > 0) Thread.sleep(5);
    store.flush();
    paced(body, perS, Math.max(seconds / 2, 2), null);
    print("quiet", paced(body, perS, seconds, null));
    long[] count = new long[2];
    Thread deleter = new Thread(() -> {
      long t = System.nanoTime();
      count[0] = store.getCommitLog().deleteExpiredFile(0, 100, 120_000, false, segments);
      count[1] = System.nanoTime() - t;
    });
    deleter.start();
    print("deleting", paced(body, perS, seconds, deleter));
    System.out.printf("deleted=%d took_ms=%.0f%n", count[0], count[1] / 1e6);
    System.out.flush();
    Runtime.getRuntime().halt(0);
  }
}
