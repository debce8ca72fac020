/** Puts records into a topic with batch queues of the reference's store, in process, and says what it sees then. Args: DIR CONF.properties FIRST COUNT [kill]
 *  Record n goes to queue n % 2 of Batches. Every third one is a single message, the others are inner batches of n % 5 + 1 messages. Says "put N OFFSET POSITION" of
 *  each, "queue ID MIN MAX", "unit ID BASE NUM POSITION SIZE TAGS" of each unit and "message ID OFFSET BODY" of each message. With kill the process ends without a stop. */
import org.apache.rocketmq.common.*;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.*;
import org.apache.rocketmq.store.queue.*;
import org.apache.rocketmq.store.stats.*;
import java.net.*;
import java.nio.ByteBuffer;
import java.util.*;
import java.util.concurrent.*;
import java.io.*;
public class StoreBatch {
  public static void main(String[] a) throws Exception {
    String dir=a[0]; Properties pr=new Properties(); try(FileReader r=new FileReader(a[1])){pr.load(r);}
    int first=Integer.parseInt(a[2]), count=Integer.parseInt(a[3]); boolean kill=a.length>4;
    MessageStoreConfig c=new MessageStoreConfig(); MixAll.properties2Object(pr,c); c.setStorePathRootDir(dir); c.setStorePathCommitLog(dir+"/commitlog"); c.setTimerWheelEnable(false); c.setHaListenPort(0);
    TopicConfig t=new TopicConfig("Batches",2,2); t.getAttributes().put("queue.type","BatchCQ");
    ConcurrentMap<String,TopicConfig> topics=new ConcurrentHashMap<>(); topics.put("Batches",t);
    DefaultMessageStore s=new DefaultMessageStore(c,new BrokerStatsManager("x",false),null,new BrokerConfig(),topics);
    if(!s.load()) throw new RuntimeException("load failed");
    s.start();
    SocketAddress h=new InetSocketAddress("127.0.0.1",1234); StringBuilder said=new StringBuilder();
    for(int n=first;n<first+count;n++){
      MessageExtBrokerInner m=new MessageExtBrokerInner(); m.setTopic("Batches"); m.setQueueId(n%2); m.setKeys("key"+n); m.setTags("Tag"+(n%3));
      if(n%3==0) m.setBody(("b"+n+"-0").getBytes());
      else {
        List<Message> inner=new ArrayList<>(); for(int i=0;i<=n%5;i++) inner.add(new Message("Batches",("b"+n+"-"+i).getBytes()));
        m.setBody(MessageDecoder.encodeMessages(inner)); m.setSysFlag(MessageSysFlag.INNER_BATCH_FLAG|MessageSysFlag.NEED_UNWRAP_FLAG);
        MessageAccessor.putProperty(m,MessageConst.PROPERTY_INNER_NUM,String.valueOf(n%5+1)); MessageAccessor.putProperty(m,MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,"uniq"+n);
      }
      m.setPropertiesString(MessageDecoder.messageProperties2String(m.getProperties()));
      m.setBornHost(h); m.setStoreHost(h); m.setBornTimestamp(System.currentTimeMillis());
      PutMessageResult r=s.putMessage(m); if(!r.isOk()) throw new RuntimeException(String.valueOf(r));
      said.append("put ").append(n).append(' ').append(r.getAppendMessageResult().getLogicsOffset()).append(' ').append(r.getAppendMessageResult().getWroteOffset()).append('\n');
    }
    while(s.dispatchBehindBytes()>0) Thread.sleep(5);
    for(int id=0;id<2;id++){
      ConsumeQueueInterface q=s.findConsumeQueue("Batches",id); if(q==null||q.getMaxOffsetInQueue()==0) continue;
      said.append("queue ").append(id).append(' ').append(q.getMinOffsetInQueue()).append(' ').append(q.getMaxOffsetInQueue()).append('\n');
      for(long at=q.getMinOffsetInQueue();at<q.getMaxOffsetInQueue();){
        CqUnit u=q.get(at); SelectMappedBufferResult r=s.getCommitLog().getMessage(u.getPos(),u.getSize()); MessageExt m=MessageDecoder.decode(r.getByteBuffer(),true,false); r.release();
        said.append("unit ").append(id).append(' ').append(u.getQueueOffset()).append(' ').append(u.getBatchNum()).append(' ').append(u.getPos()).append(' ').append(u.getSize()).append(' ').append(u.getTagsCode()).append('\n');
        List<MessageExt> all=new ArrayList<>(); if((m.getSysFlag()&MessageSysFlag.NEED_UNWRAP_FLAG)!=0) MessageDecoder.decodeMessage(m,all); else all.add(m);
        for(MessageExt one:all) said.append("message ").append(id).append(' ').append(one.getQueueOffset()).append(' ').append(new String(one.getBody())).append('\n');
        at=u.getQueueOffset()+u.getBatchNum();
      }
    }
    System.out.print(said); System.out.flush();
    if(kill) Runtime.getRuntime().halt(9);
    s.shutdown(); System.exit(0);
  }
}
