import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Plays scripts several times against a server, and prints what the callers got. Arguments: target, file of scripts. */
public final class Play {
  private static final int RUNS = 6;

  private static final MethodDescriptor.Marshaller<byte[]> BYTES =
      new MethodDescriptor.Marshaller<byte[]>() {
        @Override
        public InputStream stream(byte[] value) {
          return new ByteArrayInputStream(value);
        }

        @Override
        public byte[] parse(InputStream stream) {
          try {
            return stream.readAllBytes();
          } catch (IOException e) {
            throw new UncheckedIOException(e);
          }
        }
      };

  public static void main(String[] args) throws Exception {
    JsonArray scripts = new Gson().fromJson(Files.readString(Path.of(args[1])), JsonArray.class);
    JsonArray out = new JsonArray();
    for (int run = 0; run < RUNS; run++) {
      JsonArray results = new JsonArray();
      for (int i = 0; i < scripts.size(); i++) {
        results.add(play(args[0], run, i, scripts.get(i).getAsJsonObject()));
      }
      out.add(results);
    }
    System.out.println(out);
    System.exit(0);
  }

  @SuppressWarnings("unchecked")
  private static JsonArray play(String target, int run, int number, JsonObject script)
      throws InterruptedException {
    Map<String, ?> config = new Gson().fromJson(script.get("config"), Map.class);
    ManagedChannel channel =
        NettyChannelBuilder.forTarget(target).usePlaintext().defaultServiceConfig(config).enableRetry().build();
    JsonArray results = new JsonArray();
    try {
      ClientCalls.blockingUnaryCall(channel, method("/warm.Up/Connect", false), CallOptions.DEFAULT, new byte[0]);
      int n = 0;
      for (JsonElement e : script.getAsJsonArray("calls")) {
        Metadata headers = new Metadata();
        headers.put(Metadata.Key.of("call", Metadata.ASCII_STRING_MARSHALLER), run + "/" + number + "/" + n++);
        Channel marked = ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(headers));
        results.add(call(marked, e.getAsJsonObject()));
        Thread.sleep(20); // what was cancelled has ended
      }
    } finally {
      channel.shutdownNow().awaitTermination(1, TimeUnit.SECONDS);
    }
    return results;
  }

  private static JsonObject call(Channel channel, JsonObject call) {
    boolean stream = call.get("stream").getAsBoolean();
    MethodDescriptor<byte[], byte[]> method = method(call.get("method").getAsString(), stream);
    CallOptions options = CallOptions.DEFAULT.withDeadlineAfter(call.get("timeout").getAsLong(), TimeUnit.MILLISECONDS);
    JsonObject result = new JsonObject();
    long start = System.nanoTime();
    Status status = Status.OK;
    String text = "";
    try {
      byte[] reply;
      if (stream) {
        Iterator<byte[]> all = ClientCalls.blockingServerStreamingCall(channel, method, options, new byte[0]);
        reply = all.next();
        while (all.hasNext()) {
          all.next();
        }
      } else {
        reply = ClientCalls.blockingUnaryCall(channel, method, options, new byte[0]);
      }
      text = new String(reply, 2, reply.length - 2, StandardCharsets.UTF_8); // of a StringValue
    } catch (StatusRuntimeException e) {
      status = e.getStatus();
      text = String.valueOf(status.getDescription());
    }
    result.addProperty("took", (System.nanoTime() - start) / 1e6);
    result.addProperty("code", status.getCode().value());
    result.addProperty("text", text);
    return result;
  }

  private static MethodDescriptor<byte[], byte[]> method(String name, boolean stream) {
    return MethodDescriptor.newBuilder(BYTES, BYTES)
        .setFullMethodName(name.substring(1))
        .setType(stream ? MethodDescriptor.MethodType.SERVER_STREAMING : MethodDescriptor.MethodType.UNARY)
        .build();
  }
}
