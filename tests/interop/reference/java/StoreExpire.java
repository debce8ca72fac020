import org.apache.rocketmq.common.*;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.*;
import org.apache.rocketmq.store.queue.*;
import org.apache.rocketmq.store.stats.*;
import java.io.*;
import java.util.*;
import java.util.concurrent.*;
/** Opens a store directory with the reference implementation and makes one pass of deletion by time, as its cleaning services do. Args: DIR CONF.properties HOURS BATCH_MAX */
public class StoreExpire {
  public static void main(String[] a) throws Exception {
    String dir = a[0];
    Properties pr = new Properties();
    try (FileReader r = new FileReader(a[1])) { pr.load(r); }
    MessageStoreConfig c = new MessageStoreConfig();
    MixAll.properties2Object(pr, c);
    c.setStorePathRootDir(dir);
    String several = pr.getProperty("storePathCommitLog", "");
    c.setStorePathCommitLog(several.contains(",") ? several : dir + "/commitlog");
    c.setTimerWheelEnable(false);
    c.setHaListenPort(0);
    DefaultMessageStore s = new DefaultMessageStore(c, new BrokerStatsManager("x", false), null, new BrokerConfig(), new ConcurrentHashMap<>());
    if (!s.load()) throw new RuntimeException("load failed");
    int count = s.getCommitLog().deleteExpiredFile(Integer.parseInt(a[2]) * 3600_000L, 0, 1000, false, Integer.parseInt(a[3]));
    long min = s.getMinPhyOffset();
    for (ConcurrentMap<Integer, ConsumeQueueInterface> queues : s.getConsumeQueueTable().values())
      for (ConsumeQueueInterface queue : queues.values()) {
        queue.deleteExpiredFile(min);
        queue.correctMinOffset(min);
      }
    s.getIndexService().deleteExpiredFile(min);
    System.out.printf("deleted=%d minPhyOffset=%d%n", count, min);
    System.out.flush();
    s.shutdown();
    System.exit(0);
  }
}
