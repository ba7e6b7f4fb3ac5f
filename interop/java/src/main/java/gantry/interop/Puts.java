package gantry.interop;

import java.io.ByteArrayOutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.zip.Deflater;

// MessageExtBrokerInner is in the one package or in the other.
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;

/** Puts messages of every common kind. Content depends on the seed and the number of the message alone. */
final class Puts {
    private static final long BORN = 1_700_000_000_000L;
    private static final int PREPARED = 0x4;
    private static final int COMMIT = 0x8;
    private static final int ROLLBACK = 0xc;

    final List<Object> results = new ArrayList<>();

    private final DefaultMessageStore store;
    private final long seed;
    /** 4.9 moves a delayed message to the schedule topic itself, later versions leave it to the broker. */
    private final boolean storeSchedules = !Reflect.hasClass("org.apache.rocketmq.common.BoundaryType");

    Puts(DefaultMessageStore store, long seed) {
        this.store = store;
        this.seed = seed;
    }

    void put(int n) throws Exception {
        for (int i = 0; i < n; i++) {
            one(i);
        }
    }

    private String key(int i) {
        return "java" + seed + "-" + i;
    }

    private byte[] body(int i, int length) {
        byte[] b = new byte[length];
        byte[] text = ("from Java, seed " + seed + ", message " + i + " - ").getBytes(StandardCharsets.US_ASCII);
        for (int k = 0; k < length; k++) {
            b[k] = text[k % text.length];
        }
        return b;
    }

    private void one(int i) throws Exception {
        String unique = String.format("7F00000100002A9F%08X%08X", seed, i);
        int queue = i % 3;
        switch (i % 12) {
            case 0:
                put(i, "keys and tag", inner(i, "InteropA", queue, body(i, 100), 0, "KEYS", key(i) + " common", "TAGS", "TagA"));
                break;
            case 1:
                put(i, "empty body, no properties", inner(i, "InteropA", queue, new byte[0], 0));
                break;
            case 2:
                put(i, "unique key", inner(i, "InteropB", queue, body(i, 300), 0, "KEYS", key(i), "UNIQ_KEY", unique, "TAGS", "TagB"));
                break;
            case 3: {
                MessageExtBrokerInner m = inner(i, "InteropA", queue, body(i, 40), 0, "KEYS", key(i), "TAGS", "TagC");
                m.setBornHost(address("2001:db8::17", 40017));
                m.setBornHostV6Flag();
                put(i, "IPv6 born host", m);
                break;
            }
            case 4:
                put(i, "compressed body", inner(i, "InteropB", queue, deflate(body(i, 5000)), 1, "KEYS", key(i), "UNIQ_KEY", unique));
                break;
            case 5:
                put(i, "long body", inner(i, "InteropA", queue, body(i, 20_000 + i * 37 % 9000), 0, "KEYS", key(i), "TAGS", "long"));
                break;
            case 6:
                put(i, "prepared", inner(i, "InteropA", queue, body(i, 60), PREPARED, "KEYS", key(i), "TRAN_MSG", "true", "PGROUP", "pg"));
                break;
            case 7:
                put(i, "commit", inner(i, "InteropA", queue, body(i, 60), COMMIT, "KEYS", key(i), "TRAN_MSG", "true", "PGROUP", "pg"));
                break;
            case 8:
                batch(i, queue);
                break;
            case 9:
                put(i, "unicode", inner(i, "InteropB", queue, body(i, 80), 0, "KEYS", "\u952e" + seed + " " + key(i), "TAGS", "\u6807\u7b7e", "colour", "gr\u00fcn \ud83d\udfe2"));
                break;
            case 10:
                put(i, "rollback", inner(i, "InteropA", queue, body(i, 60), ROLLBACK, "KEYS", key(i), "TRAN_MSG", "true", "PGROUP", "pg"));
                break;
            default:
                put(i, "delayed by two hours", delayed(i, queue, unique));
                break;
        }
    }

    private static InetSocketAddress address(String ip, int port) throws Exception {
        return new InetSocketAddress(InetAddress.getByName(ip), port);
    }

    private MessageExtBrokerInner inner(int i, String topic, int queue, byte[] body, int sysFlag, String... properties) throws Exception {
        MessageExtBrokerInner m = new MessageExtBrokerInner();
        m.setTopic(topic);
        m.setQueueId(queue);
        m.setBody(body);
        m.setFlag(i);
        m.setSysFlag(sysFlag);
        m.setBornTimestamp(BORN + i);
        m.setBornHost(address("10.1.2.3", 40000));
        m.setStoreHost(address("127.0.0.1", 10911));
        for (int k = 0; k < properties.length; k += 2) {
            MessageAccessor.putProperty(m, properties[k], properties[k + 1]);
        }
        finish(m);
        return m;
    }

    /** What the broker does before a put. */
    private static void finish(MessageExtBrokerInner m) {
        m.setPropertiesString(MessageDecoder.messageProperties2String(m.getProperties()));
        m.setTagsCode(m.getTags() == null ? 0 : MessageExtBrokerInner.tagsString2tagsCode(m.getTags()));
    }

    private MessageExtBrokerInner delayed(int i, int queue, String unique) throws Exception {
        MessageExtBrokerInner m = inner(i, "InteropA", queue, body(i, 50), 0, "KEYS", key(i), "UNIQ_KEY", unique, "TAGS", "TagD", "DELAY", "18");
        if (!storeSchedules) {
            MessageAccessor.putProperty(m, MessageConst.PROPERTY_REAL_TOPIC, m.getTopic());
            MessageAccessor.putProperty(m, MessageConst.PROPERTY_REAL_QUEUE_ID, String.valueOf(queue));
            m.setTopic("SCHEDULE_TOPIC_XXXX");
            m.setQueueId(17);
            finish(m);
        }
        return m;
    }

    private void put(int i, String what, MessageExtBrokerInner m) {
        Map<String, Object> sent = sent(m.getSysFlag(), m.getBody(), m.getKeys(), m.getTags());
        result(i, what, store.putMessage(m), m.getTopic(), m.getQueueId(), sent);
    }

    private void batch(int i, int queue) throws Exception {
        List<Message> items = new ArrayList<>();
        for (int k = 0; k < 3; k++) {
            Message m = new Message("InteropB", body(i, 30 + k));
            m.setFlag(k);
            MessageAccessor.putProperty(m, "KEYS", key(i) + "." + k);
            if (k > 0) {
                MessageAccessor.putProperty(m, "TAGS", "batch" + k);
            }
            items.add(m);
        }
        MessageExtBatch b = new MessageExtBatch();
        b.setTopic("InteropB");
        b.setQueueId(queue);
        b.setBody(MessageDecoder.encodeMessages(items));
        b.setBornTimestamp(BORN + i);
        b.setBornHost(address("10.1.2.4", 41000));
        b.setStoreHost(address("127.0.0.1", 10911));
        Map<String, Object> sent = sent(0, b.getBody(), null, null);
        result(i, "batch of three", store.putMessages(b), b.getTopic(), queue, sent);
    }

    private static Map<String, Object> sent(int sysFlag, byte[] body, String keys, String tags) {
        return Json.obj("sysFlag", sysFlag, "bodyLength", body.length, "bodySHA256", Json.sha256(body), "keys", keys == null ? "" : keys,
            "tags", tags == null ? "" : tags);
    }

    private void result(int i, String what, PutMessageResult r, String topic, int queue, Map<String, Object> sent) {
        Map<String, Object> o = Json.obj("i", i, "topic", topic, "queueId", queue, "what", what, "status", r.getPutMessageStatus().name());
        AppendMessageResult a = r.getAppendMessageResult();
        if (a != null) {
            o.put("append", a.getStatus().name());
            o.put("physicalOffset", a.getWroteOffset());
            o.put("bytes", a.getWroteBytes());
            o.put("msgId", a.getMsgId());
            o.put("storeTimestamp", a.getStoreTimestamp());
            o.put("logicsOffset", a.getLogicsOffset());
            o.put("msgNum", a.getMsgNum());
        }
        o.put("sent", sent);
        results.add(o);
    }

    private static byte[] deflate(byte[] b) {
        Deflater d = new Deflater(5);
        d.setInput(b);
        d.finish();
        ByteArrayOutputStream o = new ByteArrayOutputStream();
        byte[] chunk = new byte[4096];
        while (!d.finished()) {
            o.write(chunk, 0, d.deflate(chunk));
        }
        d.end();
        return o.toByteArray();
    }
}
