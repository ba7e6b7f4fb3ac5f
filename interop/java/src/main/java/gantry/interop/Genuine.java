package gantry.interop;

import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageArrivingListener;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Opens the message store of whatever version is on the class path. */
final class Genuine {
    private static final String CLUSTER = "interop-cluster";

    /** Properties of MessageStoreConfig as text; those that this version does not have go to unknown. */
    final Map<String, String> config = new LinkedHashMap<>();
    final List<Object> unknown = new ArrayList<>();

    private final Path root;
    private final Map<String, Object> topics;

    Genuine(Path root, Map<String, Object> request) {
        this.root = root;
        Map<String, Object> t = Json.cast(request.get("topicConfig"));
        this.topics = t == null ? new LinkedHashMap<>() : t;
    }

    /** 4.9 has a logger of its own, which a broker sets up; 5.x reads a configuration file. */
    static void logToStandardError() throws Exception {
        String logging = "org.apache.rocketmq.logging.inner.";
        if (!Reflect.hasClass(logging + "LoggingBuilder")) {
            return;
        }
        Class<?> builder = Class.forName(logging + "LoggingBuilder");
        Object layout = Reflect.call(Reflect.call(builder.getMethod("newLayoutBuilder").invoke(null), "withSimpleLayout"), "build");
        Object appender = Reflect.call(builder.getMethod("newAppenderBuilder").invoke(null), "withConsoleAppender", "System.err");
        appender = Reflect.call(Reflect.call(appender, "withLayout", layout), "build");
        Object root = Class.forName(logging + "Logger").getMethod("getRootLogger").invoke(null);
        Reflect.call(root, "addAppender", appender);
        Reflect.call(root, "setLevel", Class.forName(logging + "Level").getField("WARN").get(null));
    }

    private MessageStoreConfig storeConfig() throws Exception {
        MessageStoreConfig c = new MessageStoreConfig();
        c.setStorePathRootDir(root.toString());
        c.setStorePathCommitLog(root.resolve("commitlog").toString());
        for (Map.Entry<String, String> e : config.entrySet()) {
            String value = e.getValue();
            if (e.getKey().equals("storePathCommitLog") || e.getKey().equals("readOnlyCommitLogStorePaths")) {
                StringBuilder b = new StringBuilder();
                for (String s : value.split(",")) {
                    b.append(b.length() > 0 ? "," : "").append(root.resolve(s));
                }
                value = b.toString();
            }
            if (!set(c, e.getKey(), value)) {
                unknown.add(e.getKey());
            }
        }
        return c;
    }

    /** Calls the one setter of a bean property, as the broker does with a configuration file. */
    private static boolean set(Object bean, String name, String value) throws Exception {
        String setter = "set" + Character.toUpperCase(name.charAt(0)) + name.substring(1);
        for (Method m : bean.getClass().getMethods()) {
            if (!m.getName().equals(setter) || m.getParameterCount() != 1) {
                continue;
            }
            Class<?> t = m.getParameterTypes()[0];
            if (t == int.class) {
                m.invoke(bean, Integer.parseInt(value));
            } else if (t == long.class) {
                m.invoke(bean, Long.parseLong(value));
            } else if (t == boolean.class) {
                m.invoke(bean, Boolean.parseBoolean(value));
            } else if (t == String.class) {
                m.invoke(bean, value);
            } else {
                continue;
            }
            return true;
        }
        return false;
    }

    private ConcurrentHashMap<String, TopicConfig> topicTable() throws Exception {
        ConcurrentHashMap<String, TopicConfig> table = new ConcurrentHashMap<>();
        for (Map.Entry<String, Object> e : topics.entrySet()) {
            Map<String, Object> d = Json.cast(e.getValue());
            int queues = ((Number) d.get("queues")).intValue();
            TopicConfig tc = new TopicConfig(e.getKey());
            tc.setReadQueueNums(queues);
            tc.setWriteQueueNums(queues);
            Map<String, Object> attributes = Json.cast(d.get("attributes"));
            if (attributes != null && Reflect.has(tc, "setAttributes", 1)) {
                Map<String, String> a = new LinkedHashMap<>();
                attributes.forEach((k, v) -> a.put(k, String.valueOf(v)));
                Reflect.call(tc, "setAttributes", a);
            }
            table.put(e.getKey(), tc);
        }
        return table;
    }

    /** Makes the store object. 4.9 takes four arguments, 5.x the topics besides. */
    DefaultMessageStore open() throws Exception {
        Files.createDirectories(root);
        MessageStoreConfig c = storeConfig();
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerName("interop-broker");
        broker.setBrokerClusterName(CLUSTER);
        MessageArrivingListener nobody = (topic, queueId, logicOffset, tagsCode, time, bitMap, properties) -> { };
        BrokerStatsManager stats = new BrokerStatsManager(CLUSTER, false);
        for (Constructor<?> k : DefaultMessageStore.class.getConstructors()) {
            if (k.getParameterCount() == 4) {
                return (DefaultMessageStore) k.newInstance(c, stats, nobody, broker);
            }
            if (k.getParameterCount() == 5) {
                return (DefaultMessageStore) k.newInstance(c, stats, nobody, broker, topicTable());
            }
        }
        throw new IllegalStateException("no known constructor");
    }

    /** Starts the store. 4.9 delivers due delayed messages by itself, first after one second; that is switched off: the log must only grow by what is asked for. */
    void start(DefaultMessageStore store) throws Exception {
        store.start();
        Object delivery = Reflect.get(store, "scheduleMessageService");
        if (delivery != null) {
            Reflect.call(delivery, "shutdown");
        }
    }

    /** Waits until queues and index have all that is in the log. */
    static boolean waitDispatched(DefaultMessageStore store, long ms) throws InterruptedException {
        long end = System.nanoTime() + ms * 1_000_000;
        while (System.nanoTime() < end) {
            if (store.dispatchBehindBytes() == 0) {
                return true;
            }
            Thread.sleep(1);
        }
        return false;
    }
}
