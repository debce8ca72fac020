import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import java.util.Arrays;

/**
 * One of the reference's benchmark programs with the headers that ordinary clients send. Args: CLASS ARGS...
 * The programs that send choose binary headers by a system property, which counts only before the class of commands is there.
 */
public class JsonBench {
  public static void main(String[] a) throws Exception {
    Class.forName(RemotingCommand.class.getName());
    Class.forName("org.apache.rocketmq.example.benchmark." + a[0]).getMethod("main", String[].class)
        .invoke(null, (Object) Arrays.copyOfRange(a, 1, a.length));
  }
}
