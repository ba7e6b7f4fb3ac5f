package interop;

import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.MQVersion;

/**
 * interop.Main NAMESRV SCENARIO [SUFFIX [ARG…]]
 * interop.Main NAMESRV
 *
 * Runs scenarios against the cluster behind NAMESRV and checks what came back.
 * Topic and group names end in SUFFIX (default: the time), so that runs do not
 * disturb each other. Each scenario ends with one line of JSON on standard
 * output. The first form runs one and exits 0 if all was right.
 *
 * The second form is a session: standard input has the lines
 *   run SCENARIO SUFFIX [ARG…]   starts a scenario; several run at once
 *   go SUFFIX                    continues one that waits, see Kit.pause
 * and its end ends the program.
 */
public final class Main {
    interface Scenario { void run(Kit k) throws Exception; }

    static final Map<String, Scenario> ALL = new TreeMap<>();
    static {
        Produce.register(ALL);
        Consume.register(ALL);
        Pull.register(ALL);
        Special.register(ALL);
    }

    public static void main(String[] args) throws Exception {
        if (args.length == 1) {
            session(args[0]);
            Runtime.getRuntime().halt(0);
        }
        if (args.length < 2 || !ALL.containsKey(args[1])) {
            System.err.println("usage: NAMESRV [SCENARIO [SUFFIX [ARG…]]]\nscenarios: " + ALL.keySet());
            System.exit(2);
        }
        String suffix = args.length > 2 ? args[2] : Long.toString(System.currentTimeMillis(), 36);
        Kit k = new Kit(args[0], args[1], suffix, args.length > 3 ? Arrays.copyOfRange(args, 3, args.length) : new String[0]);
        boolean ok = run(k);
        Runtime.getRuntime().halt(ok ? 0 : 1);
    }

    static void session(String namesrv) throws IOException {
        Map<String, Kit> running = new ConcurrentHashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String[] w = line.split(" ");
            if (w[0].equals("go")) {
                running.get(w[1]).resume.release();
                continue;
            }
            Kit k = new Kit(namesrv, w[1], w[2], Arrays.copyOfRange(w, 3, w.length));
            running.put(k.suffix, k);
            Thread t = new Thread(() -> run(k), k.scenario);
            t.setDaemon(true);
            t.start();
        }
    }

    static boolean run(Kit k) {
        long start = System.currentTimeMillis();
        Throwable error = null;
        try {
            Scenario s = ALL.get(k.scenario);
            if (s == null) throw new IllegalArgumentException("no scenario " + k.scenario);
            s.run(k);
        } catch (Throwable t) {
            error = t;
        }
        Collections.reverse(k.closers);
        for (Runnable r : k.closers) {
            try {
                r.run();
            } catch (Throwable t) {
                if (error == null) error = new IllegalStateException("shutdown", t);
            }
        }
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("client", "java");
        out.put("version", MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION));
        out.put("scenario", k.scenario);
        out.put("suffix", k.suffix);
        out.put("ok", error == null);
        out.put("ms", System.currentTimeMillis() - start);
        out.put("facts", k.facts);
        if (error != null) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            out.put("error", error.toString());
            out.put("trace", trace.toString());
        }
        print(out);
        return error == null;
    }

    static void print(Map<String, Object> line) {
        String s = json(line);
        synchronized (System.out) {
            System.out.println(s);
            System.out.flush();
        }
    }

    /** Booleans, numbers and maps as such, everything else as text. */
    static String json(Object o) {
        if (o instanceof Map) {
            StringJoiner j = new StringJoiner(",", "{", "}");
            for (Map.Entry<?, ?> e : ((Map<?, ?>) o).entrySet()) j.add(quote(String.valueOf(e.getKey())) + ":" + json(e.getValue()));
            return j.toString();
        }
        return o instanceof Boolean || o instanceof Integer || o instanceof Long ? o.toString() : quote(String.valueOf(o));
    }

    static String quote(String s) {
        StringBuilder b = new StringBuilder("\"");
        for (char c : s.toCharArray()) {
            if (c == '"' || c == '\\') b.append('\\').append(c);
            else if (c < 32 || c > 126) b.append(String.format("\\u%04x", (int) c));
            else b.append(c);
        }
        return b.append('"').toString();
    }
}
