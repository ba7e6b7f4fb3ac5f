package gantry.interop;

import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;

import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/** Asks a running store what it holds. Nothing here is worked out from a format description, except cutting out the raw property bytes. */
final class Look {
    private static final int UNIT_SIZE = 20;
    private static final int SHORT_BODY = 16;
    private static final int MAGIC_V2 = 0xDAA320AB;

    private final DefaultMessageStore store;
    private final CommitLog log;

    Look(DefaultMessageStore store) {
        this.store = store;
        this.log = store.getCommitLog();
    }

    // ---- messages ----

    private static String host(SocketAddress a) {
        InetSocketAddress i = (InetSocketAddress) a;
        String h = i.getAddress().getHostAddress();
        return (h.indexOf(':') >= 0 ? "[" + h + "]" : h) + ":" + i.getPort();
    }

    /** The version's own record check, body CRC included. */
    private DispatchRequest check(ByteBuffer b) throws Exception {
        if (Reflect.has(log, "checkMessageAndReturnSize", 4)) {
            return (DispatchRequest) Reflect.call(log, "checkMessageAndReturnSize", b, true, false, true);
        }
        return (DispatchRequest) Reflect.call(log, "checkMessageAndReturnSize", b, true, true);
    }

    private static byte[] rawProperties(byte[] record) {
        ByteBuffer b = ByteBuffer.wrap(record);
        int magic = b.getInt(4);
        int sysFlag = b.getInt(36);
        int born = (sysFlag & 0x10) != 0 ? 20 : 8;
        int host = (sysFlag & 0x20) != 0 ? 20 : 8;
        int p = 68 + born + host;
        p += 4 + b.getInt(p);
        p += magic == MAGIC_V2 ? 2 + (b.getShort(p) & 0xffff) : 1 + (b.get(p) & 0xff);
        int n = b.getShort(p);
        return Arrays.copyOfRange(record, p + 2, p + 2 + n);
    }

    private static Map<String, Object> message(byte[] raw, DispatchRequest d) throws Exception {
        Map<String, Object> m = new LinkedHashMap<>();
        MessageExt e = MessageDecoder.decode(ByteBuffer.wrap(raw), true, false);
        m.put("rawSHA256", Json.sha256(raw));
        if (e == null) {
            m.put("undecodable", true);
            return m;
        }
        m.put("physicalOffset", e.getCommitLogOffset());
        m.put("size", e.getStoreSize());
        m.put("magic", String.format("%08x", ByteBuffer.wrap(raw).getInt(4)));
        m.put("topic", e.getTopic());
        m.put("queueId", e.getQueueId());
        m.put("queueOffset", e.getQueueOffset());
        m.put("sysFlag", e.getSysFlag());
        m.put("flag", e.getFlag());
        m.put("bornTimestamp", e.getBornTimestamp());
        m.put("bornHost", host(e.getBornHost()));
        m.put("storeTimestamp", e.getStoreTimestamp());
        m.put("storeHost", host(e.getStoreHost()));
        m.put("reconsumeTimes", e.getReconsumeTimes());
        m.put("preparedTransactionOffset", e.getPreparedTransactionOffset());
        byte[] body = e.getBody() == null ? new byte[0] : e.getBody();
        m.put("bodyLength", body.length);
        m.put("bodyCRC", e.getBodyCRC());
        m.put("bodySHA256", Json.sha256(body));
        if (body.length <= SHORT_BODY) {
            m.put("bodyHex", Json.hex(body));
        }
        if ((e.getSysFlag() & 1) != 0) {
            MessageExt u = MessageDecoder.decode(ByteBuffer.wrap(raw), true, true);
            m.put("uncompressed", u == null ? null : Json.obj("bodyLength", u.getBody().length, "bodySHA256", Json.sha256(u.getBody())));
        }
        m.put("properties", e.getProperties() == null ? null : new TreeMap<>(e.getProperties()));
        m.put("propertiesHex", Json.hex(rawProperties(raw)));
        m.put("msgId", e.getMsgId());
        Map<String, Object> dispatch = Json.obj("tagsCode", d.getTagsCode(), "keys", d.getKeys(), "uniqKey", d.getUniqKey(),
            "queueOffset", d.getConsumeQueueOffset(), "storeTimestamp", d.getStoreTimestamp());
        if (Reflect.has(d, "getBatchSize", 0) && Reflect.number(d, "getBatchSize") != 1) {
            dispatch.put("batchSize", Reflect.number(d, "getBatchSize"));
            dispatch.put("msgBaseOffset", Reflect.number(d, "getMsgBaseOffset"));
        }
        m.put("dispatch", dispatch);
        return m;
    }

    /** Every record from an offset to the end of the log, with the store's own check and decoder. */
    void messages(Map<String, Object> answer, long from) throws Exception {
        List<Object> messages = new ArrayList<>();
        List<Object> blanks = new ArrayList<>();
        String stopped = null;
        long max = store.getMaxPhyOffset();
        for (long at = from; at >= 0 && at < max && stopped == null;) {
            SelectMappedBufferResult r = log.getData(at); // the rest of one file
            if (r == null) {
                stopped = "no data at " + at;
                break;
            }
            try {
                for (int pos = 0; pos < r.getSize();) {
                    ByteBuffer view = r.getByteBuffer().duplicate();
                    view.position(pos);
                    int size = view.getInt(pos);
                    int magic = r.getSize() - pos >= 8 ? view.getInt(pos + 4) : 0;
                    DispatchRequest d = check(view);
                    if (!d.isSuccess()) {
                        stopped = "record check failed at " + at + ", size " + d.getMsgSize();
                        break;
                    }
                    if (d.getMsgSize() == 0) {
                        blanks.add(Json.obj("physicalOffset", at, "size", size, "magic", String.format("%08x", magic)));
                        at = log.rollNextFile(at);
                        break;
                    }
                    byte[] raw = new byte[d.getMsgSize()];
                    ByteBuffer copy = r.getByteBuffer().duplicate();
                    copy.position(pos);
                    copy.get(raw);
                    messages.add(message(raw, d));
                    pos += raw.length;
                    at += raw.length;
                }
            } finally {
                r.release();
            }
        }
        if (stopped != null) {
            answer.put("walkStopped", stopped);
        }
        answer.put("messages", messages);
        answer.put("blanks", blanks);
    }

    // ---- queues ----

    List<Object> queues() throws Exception {
        List<Object> out = new ArrayList<>();
        Map<?, ?> table = (Map<?, ?>) Reflect.call(store, "getConsumeQueueTable");
        for (Object topic : new TreeSet<Object>(table.keySet())) {
            Map<?, ?> ids = (Map<?, ?>) table.get(topic);
            for (Object id : new TreeSet<Object>(ids.keySet())) {
                out.add(queue((String) topic, (Integer) id, ids.get(id)));
            }
        }
        return out;
    }

    private Map<String, Object> queue(String topic, int id, Object cq) throws Exception {
        long min = Reflect.number(store, "getMinOffsetInQueue", topic, id);
        long max = Reflect.number(store, "getMaxOffsetInQueue", topic, id);
        Map<String, Object> m = Json.obj("topic", topic, "queueId", id, "min", min, "max", max, "type", cq.getClass().getSimpleName());
        if (cq instanceof ConsumeQueue) {
            units(m, (ConsumeQueue) cq, min, max);
        } else {
            batchUnits(m, cq, min, max);
        }
        return m;
    }

    private static void units(Map<String, Object> m, ConsumeQueue cq, long min, long max) throws Exception {
        m.put("maxPhysicOffset", cq.getMaxPhysicOffset());
        List<Object> units = new ArrayList<>();
        List<Object> ext = new ArrayList<>();
        for (long i = min; i < max;) {
            SelectMappedBufferResult r = cq.getIndexBuffer(i); // the rest of one file
            if (r == null) {
                m.put("unitsStopped", i);
                break;
            }
            ByteBuffer b = r.getByteBuffer();
            int n = r.getSize() / UNIT_SIZE;
            for (int k = 0; k < n && i < max; k++, i++) {
                long phy = b.getLong();
                int size = b.getInt();
                long code = b.getLong();
                units.add(Json.arr(phy, size, code));
                if (cq.isExtAddr(code)) {
                    Object x = cq.getExt(code);
                    ext.add(x == null ? Json.obj("offset", i, "unit", null) : extUnit(i, x));
                }
            }
            r.release();
            if (n == 0) {
                m.put("unitsStopped", i);
                break;
            }
        }
        m.put("units", units);
        if (!ext.isEmpty()) {
            m.put("ext", ext);
        }
    }

    private static Map<String, Object> extUnit(long offset, Object x) throws Exception {
        byte[] bitMap = (byte[]) Reflect.call(x, "getFilterBitMap");
        return Json.obj("offset", offset, "size", Reflect.call(x, "getSize"), "tagsCode", Reflect.call(x, "getTagsCode"),
            "msgStoreTime", Reflect.call(x, "getMsgStoreTime"), "bitMapHex", bitMap == null ? null : Json.hex(bitMap));
    }

    private static void batchUnits(Map<String, Object> m, Object cq, long min, long max) throws Exception {
        List<Object> units = new ArrayList<>();
        for (long next = min; next < max;) {
            long before = next;
            Object it = Reflect.call(cq, "iterateFrom", next); // the rest of one file
            while (it != null && (Boolean) Reflect.call(it, "hasNext")) {
                Object u = Reflect.call(it, "next");
                if (u == null) {
                    break;
                }
                long offset = Reflect.number(u, "getQueueOffset");
                long num = Reflect.number(u, "getBatchNum");
                units.add(Json.obj("queueOffset", offset, "pos", Reflect.call(u, "getPos"), "size", Reflect.call(u, "getSize"),
                    "tagsCode", Reflect.call(u, "getTagsCode"), "batchNum", num, "compactedOffset", Reflect.call(u, "getCompactedOffset")));
                next = offset + num;
            }
            if (it != null) {
                Reflect.call(it, "release");
            }
            if (next == before) {
                m.put("unitsStopped", next);
                break;
            }
        }
        m.put("batchUnits", units);
    }

    // ---- questions ----

    /** Answers the questions of a request; those without questions are empty lists. */
    void answers(Map<String, Object> answer, Map<String, Object> request) throws Exception {
        answer.put("keyQueries", each(request, "keyQueries", q -> keyQuery(q)));
        answer.put("tagQueries", each(request, "tagQueries", q -> tagQuery(q)));
        answer.put("timeQueries", each(request, "timeQueries", q -> timeQuery(q)));
        answer.put("lookups", each(request, "lookups", q -> lookup(q)));
        // Last: a question for a queue that does not exist makes it.
        answer.put("getMessage", each(request, "getMessage", q -> getMessage(q)));
    }

    private interface Answer {
        Map<String, Object> to(Map<String, Object> question) throws Exception;
    }

    private static List<Object> each(Map<String, Object> request, String name, Answer a) throws Exception {
        List<Object> out = new ArrayList<>();
        List<Object> questions = Json.cast(request.get(name));
        if (questions != null) {
            for (Object q : questions) {
                out.add(a.to(Json.cast(q)));
            }
        }
        return out;
    }

    private static String text(Map<String, Object> q, String name) {
        return (String) q.get(name);
    }

    private static long number(Map<String, Object> q, String name) {
        return ((Number) q.get(name)).longValue();
    }

    private static Map<String, Object> repeat(Map<String, Object> q, String... names) {
        Map<String, Object> m = new LinkedHashMap<>();
        for (String n : names) {
            m.put(n, q.get(n));
        }
        return m;
    }

    private static List<Object> offsets(List<ByteBuffer> records) {
        List<Object> l = new ArrayList<>();
        for (ByteBuffer b : records) {
            MessageExt e = MessageDecoder.decode(b.duplicate(), false);
            l.add(e == null ? null : e.getCommitLogOffset());
        }
        return l;
    }

    private Map<String, Object> keyQuery(Map<String, Object> q) throws Exception {
        Map<String, Object> m = repeat(q, "topic", "key", "begin", "end", "maxNum");
        int max = (int) number(q, "maxNum");
        Object index = Reflect.get(store, "indexService");
        try {
            Object r = Reflect.call(index, "queryOffset", text(q, "topic"), text(q, "key"), max, number(q, "begin"), number(q, "end"));
            m.put("indexPhyOffsets", Reflect.call(r, "getPhyOffsets"));
        } catch (RuntimeException e) {
            m.put("indexError", String.valueOf(e));
        }
        try {
            QueryMessageResult r = store.queryMessage(text(q, "topic"), text(q, "key"), max, number(q, "begin"), number(q, "end"));
            m.put("messagePhyOffsets", offsets(r.getMessageBufferList()));
            m.put("indexLastUpdateTimestamp", r.getIndexLastUpdateTimestamp());
            m.put("indexLastUpdatePhyoffset", r.getIndexLastUpdatePhyoffset());
            r.release();
        } catch (RuntimeException e) {
            m.put("messageError", String.valueOf(e));
        }
        return m;
    }

    /** The index knows tags, with key type "T", from 5.4.0 on. */
    private Map<String, Object> tagQuery(Map<String, Object> q) throws Exception {
        Map<String, Object> m = repeat(q, "topic", "tags", "begin", "end", "maxNum");
        m.put("keyType", "T");
        Object r = Reflect.call(Reflect.get(store, "indexService"), "queryOffset", text(q, "topic"), text(q, "tags"), (int) number(q, "maxNum"),
            number(q, "begin"), number(q, "end"), "T");
        m.put("indexPhyOffsets", Reflect.call(r, "getPhyOffsets"));
        return m;
    }

    private Map<String, Object> timeQuery(Map<String, Object> q) throws Exception {
        Map<String, Object> m = repeat(q, "topic", "queueId", "timestamp");
        String topic = text(q, "topic");
        int id = (int) number(q, "queueId");
        long time = number(q, "timestamp");
        m.put("offset", store.getOffsetInQueueByTime(topic, id, time));
        if (Reflect.hasClass("org.apache.rocketmq.common.BoundaryType")) {
            for (Object bound : Class.forName("org.apache.rocketmq.common.BoundaryType").getEnumConstants()) {
                m.put(((Enum<?>) bound).name().toLowerCase(), Reflect.call(store, "getOffsetInQueueByTime", topic, id, time, bound));
            }
        }
        return m;
    }

    private Map<String, Object> getMessage(Map<String, Object> q) {
        Map<String, Object> m = repeat(q, "topic", "queueId", "offset", "maxMsgNums");
        GetMessageResult r = store.getMessage("interop-group", text(q, "topic"), (int) number(q, "queueId"), number(q, "offset"),
            (int) number(q, "maxMsgNums"), null);
        if (r == null) {
            return m;
        }
        m.put("status", r.getStatus().name());
        m.put("nextBeginOffset", r.getNextBeginOffset());
        m.put("minOffset", r.getMinOffset());
        m.put("maxOffset", r.getMaxOffset());
        m.put("count", r.getMessageCount());
        m.put("bufferTotalSize", r.getBufferTotalSize());
        m.put("phyOffsets", offsets(r.getMessageBufferList()));
        r.release();
        return m;
    }

    private Map<String, Object> lookup(Map<String, Object> q) {
        Map<String, Object> m = repeat(q, "physicalOffset");
        MessageExt e = store.lookMessageByOffset(number(q, "physicalOffset"));
        m.put("msgId", e == null ? null : e.getMsgId());
        m.put("commitLogOffset", e == null ? null : e.getCommitLogOffset());
        return m;
    }
}
