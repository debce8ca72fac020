import java.lang.reflect.Field;
import java.lang.reflect.Modifier;

/** Prints the fields of the classes into which a broker.conf is read: class, name and default, as JSON lines. */
public class Settings {
  static final String[] CLASSES = {
    "common.BrokerConfig", "store.config.MessageStoreConfig", "remoting.netty.NettyServerConfig",
    "remoting.netty.NettyClientConfig", "auth.config.AuthConfig", "common.ControllerConfig"};

  static String quoted(Object value) {
    String text = value == null ? "" : value.toString();
    return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ") + '"';
  }

  public static void main(String[] args) throws Exception {
    for (String name : CLASSES) {
      Class<?> type = Class.forName("org.apache.rocketmq." + name);
      Object made = type.getDeclaredConstructor().newInstance();
      for (Class<?> part = type; part != Object.class; part = part.getSuperclass()) {
        for (Field field : part.getDeclaredFields()) {
          if (Modifier.isStatic(field.getModifiers()) || field.getName().startsWith("this")) continue;
          field.setAccessible(true);
          System.out.println("[" + quoted(type.getSimpleName()) + ", " + quoted(field.getName()) + ", "
              + quoted(field.get(made)) + "]");
        }
      }
    }
  }
}
