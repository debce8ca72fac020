import java.io.File;
import java.net.URI;
import java.util.Map;
import org.apache.iceberg.Files;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/** Serves a catalogue in an SQLite file by Apache's own classes. Arguments: the file, the directory of the tables. */
public class RestServer {
  public static class LocalFiles implements FileIO {
    private static File at(String location) {
      return location.startsWith("file:") ? new File(URI.create(location).getPath()) : new File(location);
    }

    @Override
    public InputFile newInputFile(String location) {
      return Files.localInput(at(location));
    }

    @Override
    public OutputFile newOutputFile(String location) {
      at(location).getParentFile().mkdirs();
      return Files.localOutput(at(location));
    }

    @Override
    public void deleteFile(String location) {
      at(location).delete();
    }
  }

  public static void main(String[] arguments) throws Exception {
    JdbcCatalog catalog = new JdbcCatalog(properties -> new LocalFiles(), null, true);
    catalog.initialize("served", Map.of("uri", "jdbc:sqlite:" + arguments[0], "warehouse", "file://" + arguments[1]));
    ServletContextHandler context = new ServletContextHandler();
    context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    Server server = new Server();
    ServerConnector connector = new ServerConnector(server);
    connector.setHost("127.0.0.1");
    server.addConnector(connector);
    server.setHandler(context);
    server.start();
    System.out.println("port " + connector.getLocalPort());
    System.in.read(); // the end of the test closes it
    System.exit(0);
  }
}
