package interop;

import static interop.Kit.*;

import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.exception.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.message.*;

final class Produce {
    static void register(Map<String, Main.Scenario> m) {
        m.put("producer", Produce::basic);
        m.put("producer-batch", Produce::batch);
        m.put("producer-errors", Produce::errors);
        m.put("producer-query", Produce::query);
        m.put("producer-keys", Produce::keys);
        m.put("producer-timer", Produce::timer);
        m.put("producer-timer-refused", Produce::timerRefused);
        m.put("pound", Produce::pound);
    }

    /**
     * THREADS threads send messages of 1 KiB, each waiting for its answers: first
     * HEAT of them for the compilers, then, after "go", for SECONDS.
     */
    static void pound(Kit k) throws Exception {
        int threads = Integer.parseInt(k.args[0]), heat = Integer.parseInt(k.args[1]), seconds = Integer.parseInt(k.args[2]);
        String t = k.topic("pound");
        DefaultMQProducer p = k.producer(k.group("pound"), "p1");
        p.setDefaultTopicQueueNums(8);
        equal(SendStatus.SEND_OK, p.send(msg(t, "a", "first", "first")).getSendStatus(), "status");
        pound(p, t, threads, new Semaphore(heat), Long.MAX_VALUE);
        k.pause("hot");
        long n = pound(p, t, threads, new Semaphore(Integer.MAX_VALUE), System.nanoTime() + seconds * 1_000_000_000L);
        k.facts.put("sent", n);
        k.pause("sent");
    }

    /** Sends until nothing is left or the time is over, and returns how many. */
    static long pound(DefaultMQProducer p, String t, int threads, Semaphore left, long end) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<Long>> all = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            int own = i;
            all.add(pool.submit(() -> {
                byte[] body = new byte[1024];
                long n = 0;
                while (left.tryAcquire() && System.nanoTime() < end) {
                    Message m = new Message(t, "a", "key-" + own + " order-" + n, body);
                    equal(SendStatus.SEND_OK, p.send(m).getSendStatus(), "status");
                    n++;
                }
                return n;
            }));
        }
        long sum = 0;
        for (Future<Long> f : all) sum += f.get();
        pool.shutdown();
        return sum;
    }

    /** Sync, async, oneway, keys, tags, user properties, delay, compressed; the topic is created by the first send. */
    static void basic(Kit k) throws Exception {
        String t = k.topic("produce");
        DefaultMQProducer p = k.producer(k.group("produce"), "p1");
        Map<Integer, Long> next = new HashMap<>();
        for (int i = 0; i < 5; i++) {
            Message m = msg(t, "tag" + i % 2, "key" + i + " shared", "sync" + i);
            m.putUserProperty("color", i % 2 == 0 ? "red" : "blue");
            m.putUserProperty("umlaut", "\u00e4\u4e2d");
            m.setFlag(7);
            SendResult r = p.send(m);
            equal(SendStatus.SEND_OK, r.getSendStatus(), "status");
            int q = r.getMessageQueue().getQueueId();
            check(q >= 0 && q < 4, "queue " + q);
            equal(next.getOrDefault(q, 0L), r.getQueueOffset(), "queue offset");
            next.put(q, r.getQueueOffset() + 1);
            MessageId id = MessageDecoder.decodeMessageId(r.getOffsetMsgId());
            check(id.getOffset() >= 0, "msg id");
            equal("DefaultRegion", r.getRegionId(), "region");
        }
        CountDownLatch done = new CountDownLatch(3);
        List<Throwable> bad = Collections.synchronizedList(new ArrayList<>());
        for (int i = 0; i < 3; i++) {
            p.send(msg(t, "async", "a" + i, "async" + i), new SendCallback() {
                public void onSuccess(SendResult r) {
                    synchronized (next) {
                        next.merge(r.getMessageQueue().getQueueId(), r.getQueueOffset() + 1, Math::max);
                    }
                    done.countDown();
                }

                public void onException(Throwable e) { bad.add(e); done.countDown(); }
            });
        }
        check(done.await(10, TimeUnit.SECONDS), "async answers");
        check(bad.isEmpty(), "async " + bad);
        MessageQueue q0 = queues(p, t).get(0);
        long before = next.getOrDefault(q0.getQueueId(), 0L); // not maxOffset: the queue is built behind the log
        for (int i = 0; i < 3; i++) p.sendOneway(msg(t, "oneway", "o" + i, "oneway" + i), q0);
        await(10, "oneway messages", () -> max(p, q0) == before + 3);
        Message d = msg(t, "delay", "d0", "delayed");
        d.setDelayTimeLevel(1);
        equal(SendStatus.SEND_OK, p.send(d).getSendStatus(), "delayed");
        StringBuilder big = new StringBuilder();
        for (int i = 0; i < 1000; i++) big.append("0123456789");
        SendResult r = p.send(msg(t, "big", "big0", big.toString()));
        MessageExt back = p.viewMessage(t, r.getOffsetMsgId());
        equal(big.toString(), text(back), "compressed body");
        // An empty body is refused by the client, a tag-less and key-less message is not.
        equal(SendStatus.SEND_OK, p.send(new Message(t, new byte[] {0})).getSendStatus(), "bare message");
        k.facts.put("topic", t);
    }

    static long max(DefaultMQProducer p, MessageQueue q) {
        try {
            return p.maxOffset(q);
        } catch (Exception e) {
            return -1;
        }
    }

    static void batch(Kit k) throws Exception {
        String t = k.topic("batch");
        DefaultMQProducer p = k.producer(k.group("batch"), "p1");
        for (int round = 0; round < 2; round++) {
            List<Message> l = new ArrayList<>();
            for (int i = 0; i < 5; i++) l.add(msg(t, "b", "bk" + round + i, "batch" + round + i));
            SendResult r = p.send(l);
            equal(SendStatus.SEND_OK, r.getSendStatus(), "status");
            equal(5, r.getOffsetMsgId().split(",").length, "offset message ids");
            equal(5, r.getMsgId().split(",").length, "unique ids");
            MessageExt third = p.viewMessage(t, r.getOffsetMsgId().split(",")[2]);
            equal("batch" + round + "2", text(third), "third body");
            equal(r.getQueueOffset() + 2, third.getQueueOffset(), "third queue offset");
        }
    }

    static void errors(Kit k) throws Exception {
        String t = k.topic("errors");
        DefaultMQProducer p = k.producer(k.group("errors"), "p1");
        p.send(msg(t, null, null, "first"));
        p.setMaxMessageSize(16 << 20);
        p.setRetryTimesWhenSendFailed(0);
        byte[] noise = new byte[5 << 20];
        new Random(1).nextBytes(noise);
        try {
            p.send(new Message(t, noise), 10000);
            check(false, "5 MiB accepted");
        } catch (MQBrokerException e) {
            equal(13, e.getResponseCode(), "too large");
            k.facts.put("tooLarge", e.getErrorMessage());
        }
        // Properties above 32767 bytes: the client does not check them.
        Message fat = msg(t, null, null, "fat");
        StringBuilder s = new StringBuilder();
        for (int i = 0; i < 3300; i++) s.append("0123456789");
        fat.putUserProperty("fat", s.toString());
        try {
            p.send(fat);
            check(false, "fat properties accepted");
        } catch (MQBrokerException e) {
            equal(13, e.getResponseCode(), "fat properties");
            k.facts.put("fatProperties", e.getErrorMessage());
        }
        // Refused in the client: no frame leaves.
        for (String bad : new String[] {"SCHEDULE_TOPIC_XXXX", "x".repeat(128), "has space", ""}) {
            try {
                p.send(msg(bad, null, null, "x"));
                check(false, "topic accepted: " + bad);
            } catch (MQClientException e) {
                k.facts.merge("clientRefused", 1, (a, b) -> (int) a + (int) b);
            }
        }
        // No template topic: the route lookup answers 17 for the topic and for the template.
        DefaultMQProducer p2 = k.conf(new DefaultMQProducer(k.group("errors2")), "p2");
        p2.setCreateTopicKey(k.topic("notemplate"));
        p2.start();
        k.closers.add(p2::shutdown);
        try {
            p2.send(msg(k.topic("nosuch"), null, null, "x"));
            check(false, "unknown topic accepted");
        } catch (MQClientException e) {
            k.facts.put("noRoute", e.getResponseCode());
        }
    }

    /** Admin calls every producer offers: offsets, times, queries. */
    static void query(Kit k) throws Exception {
        String t = k.topic("query");
        DefaultMQProducer p = k.producer(k.group("query"), "p1");
        p.send(msg(t, "a", "first", "first"));
        List<MessageQueue> mqs = queues(p, t);
        MessageQueue q = mqs.get(1);
        List<SendResult> rs = new ArrayList<>();
        long t1 = 0;
        for (int i = 0; i < 6; i++) {
            if (i == 3) {
                Thread.sleep(1500);
                t1 = System.currentTimeMillis();
                Thread.sleep(20);
            }
            rs.add(p.send(msg(t, "a", "order" + i + " all", "q" + i), q));
        }
        long min = p.minOffset(q);
        // The queue is built behind the log.
        await(10, "max offset", () -> max(p, q) == rs.get(5).getQueueOffset() + 1);
        equal(0L, min, "min offset");
        equal(rs.get(3).getQueueOffset(), p.searchOffset(q, t1), "offset by time");
        // 4.9.x answers the last message, 5.x the end.
        long future = p.searchOffset(q, System.currentTimeMillis() + 100000);
        check(future == p.maxOffset(q) || future == p.maxOffset(q) - 1, "offset of the future " + future);
        k.facts.put("futureMinusMax", future - p.maxOffset(q));
        check(Math.abs(p.earliestMsgStoreTime(q) - System.currentTimeMillis()) < 60000, "earliest store time");
        await(20, "index", () -> found(p, t, "all", 32).size() == 6);
        QueryResult qr = p.queryMessage(t, "order4", 10, 0, Long.MAX_VALUE);
        equal(1, qr.getMessageList().size(), "by key");
        equal("q4", text(qr.getMessageList().get(0)), "by key");
        equal(6, p.queryMessage(t, "all", 32, 0, Long.MAX_VALUE).getMessageList().size(), "by shared key");
        equal(2, p.queryMessage(t, "all", 2, 0, Long.MAX_VALUE).getMessageList().size(), "by shared key, two");
        equal("q2", text(p.viewMessage(t, rs.get(2).getOffsetMsgId())), "by offset id");
        equal("q2", text(p.viewMessage(t, rs.get(2).getMsgId())), "by unique id");
        try {
            p.queryMessage(t, "nosuchkey", 10, 0, Long.MAX_VALUE);
            check(false, "found nosuchkey");
        } catch (MQClientException e) {
            k.facts.put("noSuchKey", e.getResponseCode());
        }
    }

    static List<MessageExt> found(DefaultMQProducer p, String topic, String key, int max) {
        try {
            return p.queryMessage(topic, key, max, 0, Long.MAX_VALUE).getMessageList();
        } catch (Exception e) {
            return List.of(); // nothing found is an exception
        }
    }

    /** Keys with one and the same Java hash: a query for one finds all of its messages and no others. */
    static void keys(Kit k) throws Exception {
        String t = k.topic("keys");
        String[] keys = {"Ea", "FB"};
        equal(keys[0].hashCode(), keys[1].hashCode(), "hash codes");
        DefaultMQProducer p = k.producer(k.group("keys"), "p1");
        SendResult first = p.send(msg(t, null, "other", "first"));
        MessageQueue q = queues(p, t).get(0);
        long before = first.getMessageQueue().equals(q) ? 1 : 0;
        for (int i = 0; i < 3; i++) {
            for (String key : keys) {
                equal(SendStatus.SEND_OK, p.send(msg(t, null, key, key + "-sync" + i), q).getSendStatus(), "status");
                p.sendOneway(msg(t, null, key, key + "-oneway" + i), q);
            }
        }
        await(20, "one-way messages", () -> max(p, q) == before + 12);
        for (String key : keys) {
            await(20, "index", () -> found(p, t, key, 64).size() >= 6);
            List<MessageExt> got = found(p, t, key, 64);
            SortedSet<String> bodies = new TreeSet<>(), want = range(key + "-sync", 0, 3);
            want.addAll(range(key + "-oneway", 0, 3));
            for (MessageExt m : got) {
                equal(key, m.getKeys(), "key of a found message");
                bodies.add(text(m));
            }
            equal(want, bodies, "found by " + key);
            equal(6, got.size(), "messages found by " + key);
            // Java's broker counts messages of the other key, which the client then drops.
            k.facts.put("foundOf6by" + key, found(p, t, key, 6).size());
        }
    }

    /** Without timer messages the broker refuses them, and nothing is stored. */
    static void timerRefused(Kit k) throws Exception {
        String t = k.topic("timer");
        DefaultMQProducer p = k.producer(k.group("timer"), "p1");
        p.setRetryTimesWhenSendFailed(0);
        MessageQueue q = p.send(msg(t, null, null, "now")).getMessageQueue();
        long at = System.currentTimeMillis() + 3000;
        for (String[] kv : new String[][] {{"TIMER_DELAY_MS", "3000"}, {"TIMER_DELAY_SEC", "3"}, {"TIMER_DELIVER_MS", Long.toString(at)}}) {
            Message m = msg(t, null, null, kv[0]);
            MessageAccess.put(m, kv[0], kv[1]);
            try {
                p.send(m, q);
                check(false, kv[0] + " accepted");
            } catch (MQBrokerException e) {
                k.facts.put(kv[0], e.getResponseCode());
            }
        }
        String handle = Base64.getUrlEncoder().encodeToString(bytes("v1 " + t + " " + q.getBrokerName() + " " + at + " " + MessageClientIDSetter.createUniqID()));
        try {
            check(!callIfPresent(p, "recallMessage", t, handle), "recall accepted");
        } catch (java.lang.reflect.InvocationTargetException e) {
            if (!(e.getCause() instanceof MQBrokerException)) throw e;
            k.facts.put("recall", ((MQBrokerException) e.getCause()).getResponseCode());
        }
        equal(SendStatus.SEND_OK, p.send(msg(t, null, null, "after"), q).getSendStatus(), "plain message afterwards");
        await(10, "the messages stored", () -> max(p, q) == 2);
    }

    /** Timer messages and recall; the server must be 5.x. */
    static void timer(Kit k) throws Exception {
        String t = k.topic("timer");
        DefaultMQProducer p = k.producer(k.group("timer"), "p1");
        p.send(msg(t, null, null, "now"));
        Kit.Sink sink = new Kit.Sink();
        org.apache.rocketmq.client.consumer.DefaultMQPushConsumer c = k.consumer(k.group("timerc"), "c1",
            org.apache.rocketmq.common.consumer.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.subscribe(t, "*");
        c.registerMessageListener(sink);
        c.start();
        Message m = msg(t, null, "t0", "in3s");
        m.putUserProperty("x", "y");
        MessageAccess.put(m, "TIMER_DELAY_MS", "3000");
        long at = System.currentTimeMillis();
        p.send(m);
        Message gone = msg(t, null, "t1", "recalled");
        MessageAccess.put(gone, "TIMER_DELIVER_MS", Long.toString(at + 6000));
        SendResult r = p.send(gone);
        Object handle = null;
        for (java.lang.reflect.Method f : r.getClass().getMethods()) if (f.getName().equals("getRecallHandle")) handle = f.invoke(r);
        boolean recalled = false;
        try {
            recalled = handle != null && callIfPresent(p, "recallMessage", t, handle);
        } catch (java.lang.reflect.InvocationTargetException e) {
            k.facts.put("recallRefused", e.getCause().toString()); // recallMessageEnable is false by default
        }
        await(20, "timer message", () -> sink.bodies().contains("in3s"));
        for (MessageExt e : sink.got) {
            if (text(e).equals("in3s")) {
                long late = e.getStoreTimestamp() - at;
                check(late >= 2000 && late < 8000, "delivered after " + late);
                k.facts.put("afterMs", late);
            }
        }
        Thread.sleep(5000);
        k.facts.put("recalled", recalled);
        equal(!recalled, sink.bodies().contains("recalled"), "recalled message seen");
    }
}
