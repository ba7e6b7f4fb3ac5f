package gantry.interop;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.LinkedHashMap;
import java.util.Map;

import org.apache.rocketmq.store.DefaultMessageStore;

/**
 * Lets the genuine message store of the RocketMQ version on the class path work on a store directory.
 *
 * <pre>
 * read   DIR [KEY=VALUE ...]         open DIR, print all it holds and its answers to the questions, close it cleanly
 * append DIR N SEED [KEY=VALUE ...]  open DIR, put N messages, print the results and what it reads back, close it cleanly
 * crash  DIR N SEED [KEY=VALUE ...]  open DIR, put N messages, print the results, halt the JVM: abort stays, nothing is flushed
 * </pre>
 *
 * KEY=VALUE are properties of MessageStoreConfig, paths relative to DIR; those that the version does not have are listed in the
 * answer. On standard input comes a JSON object, possibly empty: "topicConfig", and for read the questions: "keyQueries",
 * "tagQueries", "timeQueries", "getMessage" and "lookups" with the fields of golden manifests that ask. The answer is one JSON object
 * on standard output, in the form of golden manifests. Everything else, logs included, goes to standard error.
 *
 * Exit code: 0 done, 9 halted as asked, 3 failed.
 */
public final class Main {
    private static final int FAILED = 3;
    private static final int HALTED = 9;

    private Main() { }

    public static void main(String[] args) {
        PrintStream out = System.out;
        System.setOut(System.err);
        int code = FAILED;
        try {
            code = run(args, out);
        } catch (Throwable t) {
            t.printStackTrace();
        }
        // Not exit: threads of the store that do not end must not keep the JVM, nor shutdown hooks change the directory.
        System.err.flush();
        Runtime.getRuntime().halt(code);
    }

    private static int run(String[] args, PrintStream out) throws Exception {
        String verb = args[0];
        Path dir = Paths.get(args[1]).toAbsolutePath();
        boolean puts = verb.equals("append") || verb.equals("crash");
        if (!puts && !verb.equals("read")) {
            throw new IllegalArgumentException(verb);
        }
        Genuine.logToStandardError();
        int first = puts ? 4 : 2;
        Map<String, Object> request = request();
        Genuine genuine = new Genuine(dir, request);
        for (int i = first; i < args.length; i++) {
            int eq = args[i].indexOf('=');
            genuine.config.put(args[i].substring(0, eq), args[i].substring(eq + 1));
        }

        Map<String, Object> answer = new LinkedHashMap<>();
        DefaultMessageStore store = genuine.open();
        answer.put("configNotInThisVersion", genuine.unknown);
        answer.put("load", store.load());
        if (!Boolean.TRUE.equals(answer.get("load"))) {
            print(out, answer);
            return 0;
        }
        genuine.start(store);
        Look look = new Look(store);
        answer.put("dispatched", Genuine.waitDispatched(store, 60_000));
        answer.put("minPhysicalOffset", store.getMinPhyOffset());

        if (!puts) {
            answer.put("maxPhysicalOffset", store.getMaxPhyOffset());
            look.messages(answer, store.getMinPhyOffset());
            answer.put("queues", look.queues());
            look.answers(answer, request);
            store.shutdown();
            print(out, answer);
            return 0;
        }

        long before = store.getMaxPhyOffset();
        answer.put("maxPhysicalOffsetBefore", before);
        Puts p = new Puts(store, Long.parseLong(args[3]));
        p.put(Integer.parseInt(args[2]));
        answer.put("puts", p.results);
        answer.put("maxPhysicalOffset", store.getMaxPhyOffset());
        if (verb.equals("crash")) {
            print(out, answer);
            return HALTED;
        }
        answer.put("dispatched", Genuine.waitDispatched(store, 60_000));
        look.messages(answer, before);
        answer.put("queues", look.queues());
        store.shutdown();
        print(out, answer);
        return 0;
    }

    private static Map<String, Object> request() throws IOException {
        ByteArrayOutputStream b = new ByteArrayOutputStream();
        byte[] chunk = new byte[65536];
        InputStream in = System.in;
        for (int n = in.read(chunk); n >= 0; n = in.read(chunk)) {
            b.write(chunk, 0, n);
        }
        String s = new String(b.toByteArray(), StandardCharsets.UTF_8).trim();
        return s.isEmpty() ? new LinkedHashMap<>() : Json.object(s);
    }

    private static void print(PrintStream out, Map<String, Object> answer) throws IOException {
        out.write(Json.text(answer).getBytes(StandardCharsets.US_ASCII));
        out.write('\n');
        out.flush();
        if (out.checkError()) {
            throw new IOException("standard output is closed");
        }
    }
}
