package gantry.look;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What a genuine admin tool and genuine clients of one version see of a broker,
 * as one line of JSON. Classes that moved between 4.9 and 5.x are reached by
 * reflection, see Moved.
 *
 * snapshot NAMESRV BROKER TOPICS GROUPS   topics, groups, offsets, messages
 * continue NAMESRV TOPIC GROUP N          sends N messages; a consumer of the
 *                                         group has to get those and no others
 */
public final class Main {
    public static void main(String[] args) throws Exception {
        Map<String, Object> out;
        switch (args[0]) {
            case "snapshot":
                out = snapshot(args[1], args[2], list(args[3]), list(args[4]));
                break;
            case "continue":
                out = proceed(args[1], args[2], args[3], Integer.parseInt(args[4]));
                break;
            default:
                throw new IllegalArgumentException(args[0]);
        }
        System.out.println(json(out));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static List<String> list(String s) {
        return Arrays.asList(s.split(","));
    }

    static Map<String, Object> snapshot(String namesrv, String broker, List<String> topics, List<String> groups) throws Exception {
        Map<String, Object> out = new TreeMap<>();
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10000);
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("look-admin");
        admin.start();
        out.put("topics", Moved.topics(admin, broker));
        out.put("groups", Moved.groups(admin, broker));

        Map<String, Object> queues = new TreeMap<>();
        for (String topic : topics) {
            queues.put(topic, Moved.topicStats(admin, topic));
        }
        out.put("queues", queues);
        Map<String, Object> offsets = new TreeMap<>();
        for (String group : groups) {
            offsets.put(group, Moved.consumeStats(admin, group));
        }
        out.put("offsets", offsets);

        DefaultMQPullConsumer c = new DefaultMQPullConsumer("look");
        c.setNamesrvAddr(namesrv);
        c.setInstanceName("look-pull");
        c.start();
        Map<String, Object> messages = new TreeMap<>();
        Map<String, Object> keys = new TreeMap<>();
        for (String topic : topics) {
            TreeSet<String> seen = new TreeSet<>();
            for (MessageQueue q : c.fetchSubscribeMessageQueues(topic)) {
                List<Object> l = new ArrayList<>();
                for (long at = c.minOffset(q), max = c.maxOffset(q); at < max; ) {
                    PullResult r = c.pull(q, "*", at, 32);
                    if (r.getPullStatus() != PullStatus.FOUND || r.getNextBeginOffset() <= at) {
                        throw new IllegalStateException(q + " at " + at + ": " + r);
                    }
                    for (MessageExt m : r.getMsgFoundList()) {
                        l.add(message(m));
                        if (m.getKeys() != null) {
                            seen.addAll(Arrays.asList(m.getKeys().split(" ")));
                        }
                    }
                    at = r.getNextBeginOffset();
                }
                messages.put(topic + "/" + q.getQueueId(), l);
            }
            int n = 0;
            for (String key : seen) {
                if (n++ == 20) {
                    break; // enough
                }
                keys.put(topic + "/" + key, query(admin, topic, key));
            }
        }
        out.put("messages", messages);
        out.put("keys", keys);
        return out;
    }

    /** The places of the messages with a key, in order. */
    static Object query(DefaultMQAdminExt admin, String topic, String key) {
        TreeSet<String> found = new TreeSet<>();
        try {
            QueryResult r = admin.queryMessage(topic, key, 64, 0, Long.MAX_VALUE);
            for (MessageExt m : r.getMessageList()) {
                found.add(m.getQueueId() + "/" + m.getQueueOffset());
            }
        } catch (Exception e) {
            return e.getClass().getSimpleName();
        }
        return new ArrayList<>(found);
    }

    static Map<String, Object> message(MessageExt m) {
        Map<String, Object> o = new TreeMap<>();
        CRC32 crc = new CRC32();
        crc.update(m.getBody());
        o.put("topic", m.getTopic());
        o.put("offset", m.getQueueOffset());
        o.put("physical", m.getCommitLogOffset());
        o.put("size", m.getStoreSize());
        o.put("msgId", m.getMsgId());
        o.put("body", m.getBody().length + " bytes " + Long.toHexString(crc.getValue()));
        o.put("born", m.getBornTimestamp() + " " + m.getBornHost());
        o.put("stored", m.getStoreTimestamp() + " " + m.getStoreHost());
        o.put("flags", m.getFlag() + " " + m.getSysFlag() + " " + m.getReconsumeTimes() + " " + m.getPreparedTransactionOffset());
        Map<String, Object> p = new TreeMap<>(m.getProperties());
        p.remove("MIN_OFFSET"); // the client adds where the queue was
        p.remove("MAX_OFFSET");
        o.put("properties", p);
        return o;
    }

    static Map<String, Object> proceed(String namesrv, String topic, String group, int n) throws Exception {
        DefaultMQProducer p = new DefaultMQProducer("look-producer");
        p.setNamesrvAddr(namesrv);
        p.setInstanceName("look-producer");
        p.start();
        ConcurrentSkipListSet<String> got = new ConcurrentSkipListSet<>();
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(group);
        c.setNamesrvAddr(namesrv);
        c.setInstanceName("look-consumer");
        c.subscribe(topic, "*");
        c.registerMessageListener((MessageListenerConcurrently) (msgs, ctx) -> {
            for (MessageExt m : msgs) {
                got.add(new String(m.getBody(), StandardCharsets.UTF_8));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        TreeSet<String> want = new TreeSet<>();
        String run = Long.toString(System.currentTimeMillis(), 36);
        List<Object> results = new ArrayList<>();
        for (int i = 0; i < n; i++) {
            String body = "continued-" + run + "-" + i;
            SendResult r = p.send(new Message(topic, "T", "continued", body.getBytes(StandardCharsets.UTF_8)));
            results.add(r.getSendStatus() + " " + r.getMessageQueue().getQueueId() + "/" + r.getQueueOffset());
            want.add(body);
        }
        long end = System.currentTimeMillis() + 60000;
        while (!got.containsAll(want) && System.currentTimeMillis() < end) {
            Thread.sleep(50);
        }
        c.shutdown(); // commits
        p.shutdown();
        Map<String, Object> out = new TreeMap<>();
        out.put("sent", results);
        out.put("want", new ArrayList<Object>(want));
        out.put("got", new ArrayList<Object>(got));
        return out;
    }

    static String json(Object o) {
        if (o instanceof Map) {
            StringJoiner j = new StringJoiner(",", "{", "}");
            for (Map.Entry<?, ?> e : ((Map<?, ?>) o).entrySet()) {
                j.add(quote(String.valueOf(e.getKey())) + ":" + json(e.getValue()));
            }
            return j.toString();
        }
        if (o instanceof List) {
            StringJoiner j = new StringJoiner(",", "[", "]");
            for (Object e : (List<?>) o) {
                j.add(json(e));
            }
            return j.toString();
        }
        return o instanceof Number || o instanceof Boolean ? o.toString() : quote(String.valueOf(o));
    }

    static String quote(String s) {
        StringBuilder b = new StringBuilder("\"");
        for (char c : s.toCharArray()) {
            if (c == '"' || c == '\\') {
                b.append('\\').append(c);
            } else if (c < 32 || c > 126) {
                b.append(String.format("\\u%04x", (int) c));
            } else {
                b.append(c);
            }
        }
        return b.append('"').toString();
    }

    private Main() { }
}
