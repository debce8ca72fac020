/** Puts messages with multi-dispatch into the reference's store, in process. Args: DIR CONF.properties FIRST COUNT [kill]
 *  Message n goes to Parent(n % 2), queue n % 3, with a place in %LMQ%all for every third n and in %LMQ%q(n % 4), none for every
 *  fifth. Says of each put its number, position and INNER_MULTI_QUEUE_OFFSET; with kill the process ends without a stop. */
import org.apache.rocketmq.common.*;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.*;
import org.apache.rocketmq.store.stats.*;
import java.net.*;
import java.util.*;
import java.util.concurrent.*;
import java.io.*;
public class StoreLmq {
  public static void main(String[] a) throws Exception {
    String dir=a[0]; Properties pr=new Properties(); try(FileReader r=new FileReader(a[1])){pr.load(r);}
    int first=Integer.parseInt(a[2]), count=Integer.parseInt(a[3]); boolean kill=a.length>4;
    MessageStoreConfig c=new MessageStoreConfig(); MixAll.properties2Object(pr,c); c.setStorePathRootDir(dir); c.setStorePathCommitLog(dir+"/commitlog"); c.setTimerWheelEnable(false); c.setHaListenPort(0);
    DefaultMessageStore s=new DefaultMessageStore(c,new BrokerStatsManager("x",false),null,new BrokerConfig(),new ConcurrentHashMap<>());
    if(!s.load()) throw new RuntimeException("load failed");
    s.start();
    SocketAddress h=new InetSocketAddress("127.0.0.1",1234); StringBuilder said=new StringBuilder();
    for(int n=first;n<first+count;n++){
      MessageExtBrokerInner m=new MessageExtBrokerInner(); m.setTopic("Parent"+(n%2)); m.setQueueId(n%3); m.setBody(("body "+n).getBytes()); m.setKeys("key"+n); m.setTags("Tag"+(n%3));
      String names=(n%5==0)?null:(n%3==0?"%LMQ%all,":"")+"%LMQ%q"+(n%4);
      if(names!=null) MessageAccessor.putProperty(m,MessageConst.PROPERTY_INNER_MULTI_DISPATCH,names);
      m.setPropertiesString(MessageDecoder.messageProperties2String(m.getProperties()));
      m.setBornHost(h); m.setStoreHost(h); m.setBornTimestamp(System.currentTimeMillis());
      PutMessageResult r=s.putMessage(m); if(!r.isOk()) throw new RuntimeException(String.valueOf(r));
      said.append(n).append(' ').append(r.getAppendMessageResult().getWroteOffset()).append(' ').append(m.getProperty(MessageConst.PROPERTY_INNER_MULTI_QUEUE_OFFSET)).append('\n');
    }
    while(s.dispatchBehindBytes()>0) Thread.sleep(5);
    System.out.print(said); System.out.flush();
    if(kill) Runtime.getRuntime().halt(9);
    s.shutdown(); System.exit(0);
  }
}
