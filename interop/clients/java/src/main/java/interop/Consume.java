package interop;

import static interop.Kit.*;

import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

final class Consume {
    static final ConsumeFromWhere FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET;
    static final ConsumeFromWhere LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET;
    static final ConsumeFromWhere TIME = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP;

    static void register(Map<String, Main.Scenario> m) {
        m.put("consumer-tags", Consume::tags);
        m.put("consumer-sql", Consume::sql);
        m.put("consumer-from", Consume::from);
        m.put("consumer-from-old", Consume::fromOld);
        m.put("consumer-retry", Consume::retry);
        m.put("consumer-broadcast", Consume::broadcast);
        m.put("consumer-rebalance", Consume::rebalance);
        m.put("consumer-orderly", Consume::orderly);
        m.put("consumer-pop", Consume::pop);
        m.put("consumer-pop-refused", Consume::popRefused);
        m.put("consumer-hold", Consume::hold);
        m.put("spread", Consume::spread);
    }

    /** One topic by tags, one with *; messages sent before and after the consumer starts. */
    static void tags(Kit k) throws Exception {
        String t = k.topic("tags"), all = k.topic("all");
        DefaultMQProducer p = k.producer(k.group("tagsp"), "p1");
        k.fill(p, t, 6, "m", "a", "b", "c");
        k.fill(p, all, 3, "x", "z");
        Sink sink = new Sink();
        DefaultMQPushConsumer c = k.consumer(k.group("tags"), "c1", FIRST);
        c.subscribe(t, "a || c");
        c.subscribe(all, "*");
        c.registerMessageListener(sink);
        c.start();
        SortedSet<String> want = set("m", 0, 2, 3, 5);
        want.addAll(range("x", 0, 3));
        await(30, "first messages", () -> sink.bodies().equals(want));
        k.fill(p, t, 6, "n", "a", "b", "c");
        want.addAll(set("n", 0, 2, 3, 5));
        await(30, "later messages", () -> sink.bodies().equals(want));
        if (System.getProperty("interop.heartbeatMs") != null) Thread.sleep(5000);
        Thread.sleep(300);
        equal(want.size(), sink.got.size(), "no message twice");
        for (MessageExt e : sink.got) {
            check(e.getStoreHost() != null && e.getBornHost() != null && e.getMsgId() != null, "hosts");
            check(e.getReconsumeTimes() == 0, "reconsume times");
        }
    }

    static void sql(Kit k) throws Exception {
        String t = k.topic("sql");
        DefaultMQProducer p = k.producer(k.group("sqlp"), "p1");
        for (int i = 0; i < 8; i++) {
            Message m = msg(t, "t", null, "s" + i);
            m.putUserProperty("n", "" + i);
            m.putUserProperty("color", i % 2 == 0 ? "red" : "blue");
            p.send(m);
        }
        Kit.queues(p, t);
        Sink sink = new Sink();
        DefaultMQPushConsumer c = k.consumer(k.group("sql"), "c1", FIRST);
        c.subscribe(t, MessageSelector.bySql("n > 2 AND color = 'red' AND TAGS IS NOT NULL"));
        c.registerMessageListener(sink);
        c.start();
        await(30, "filtered messages", () -> sink.bodies().equals(set("s", 4, 6)));
        Message m = msg(t, "t", null, "s9");
        m.putUserProperty("n", "100");
        m.putUserProperty("color", "red");
        p.send(m);
        await(30, "later message", () -> sink.bodies().equals(set("s", 4, 6, 9)));
        // A broken expression is refused by the broker when the consumer starts.
        DefaultMQPushConsumer bad = k.consumer(k.group("sqlbad"), "c2", FIRST);
        bad.subscribe(t, MessageSelector.bySql("n >"));
        bad.registerMessageListener(new Sink());
        try {
            bad.start();
            check(false, "broken expression accepted");
        } catch (Exception e) {
            k.facts.put("badSql", e.getClass().getSimpleName());
        }
    }

    static Sink start(Kit k, String topic, String group, String instance, ConsumeFromWhere from, long time) throws Exception {
        Sink sink = new Sink();
        DefaultMQPushConsumer c = k.consumer(group, instance, from);
        if (time > 0) c.setConsumeTimestamp(UtilAll.timeMillisToHumanString3(time));
        c.subscribe(topic, "*");
        c.registerMessageListener(sink);
        c.start();
        return sink;
    }

    /** New groups on a young topic: the broker answers offset 0, so all start at the beginning. */
    static void from(Kit k) throws Exception {
        String t = k.topic("from");
        DefaultMQProducer p = k.producer(k.group("fromp"), "p1");
        k.fill(p, t, 8, "f");
        List<Sink> sinks = new ArrayList<>();
        sinks.add(start(k, t, k.group("first"), "c1", FIRST, 0));
        sinks.add(start(k, t, k.group("last"), "c2", LAST, 0));
        sinks.add(start(k, t, k.group("time"), "c3", TIME, System.currentTimeMillis() - 3600000));
        for (Sink s : sinks) await(30, "all messages", () -> s.bodies().equals(range("f", 0, 8)));
    }

    /**
     * The same on an old topic, where the broker answers 22 and the client decides.
     * Needs a broker that regards the topic as old (Java: accessMessageInMemoryMaxRatio=0).
     * consumeTimestamp has whole seconds; it is nearer to the later messages (4.9.x answers the nearest).
     */
    static void fromOld(Kit k) throws Exception {
        String t = k.topic("fromold");
        DefaultMQProducer p = k.producer(k.group("fromoldp"), "p1");
        k.fill(p, t, 4, "f");
        Thread.sleep(2100);
        long now = System.currentTimeMillis() / 1000 * 1000;
        k.fill(p, t, 4, "g");
        k.fill(p, k.topic("filler"), 4, "x");
        Sink first = start(k, t, k.group("first"), "c1", FIRST, 0);
        Sink last = start(k, t, k.group("last"), "c2", LAST, 0);
        Sink time = start(k, t, k.group("time"), "c3", TIME, now);
        SortedSet<String> all = range("f", 0, 4);
        all.addAll(range("g", 0, 4));
        await(30, "first", () -> first.bodies().equals(all));
        await(30, "timestamp", () -> time.bodies().equals(range("g", 0, 4)));
        Thread.sleep(3000);
        k.fill(p, t, 4, "h");
        await(30, "last", () -> last.bodies().equals(range("h", 0, 4)));
    }

    /** RECONSUME_LATER: one message recovers at the second try, one ends in the dead letter queue. */
    static void retry(Kit k) throws Exception {
        String t = k.topic("retry"), g = k.group("retry");
        DefaultMQProducer p = k.producer(k.group("retryp"), "p1");
        k.fill(p, t, 3, "r");
        Map<String, List<Integer>> tries = new ConcurrentHashMap<>();
        DefaultMQPushConsumer c = k.consumer(g, "c1", FIRST);
        c.setMaxReconsumeTimes(2);
        c.subscribe(t, "*");
        c.registerMessageListener((MessageListenerConcurrently) (msgs, ctx) -> {
            MessageExt m = msgs.get(0);
            tries.computeIfAbsent(text(m), x -> Collections.synchronizedList(new ArrayList<>())).add(m.getReconsumeTimes());
            check(m.getTopic().equals(t), "retried message shows its own topic");
            boolean fail = text(m).equals("r0") || (text(m).equals("r1") && m.getReconsumeTimes() == 0);
            return fail ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        await(60, "three tries", () -> tries.getOrDefault("r0", List.of()).size() == 3 && tries.getOrDefault("r1", List.of()).size() == 2);
        Sink dead = new Sink();
        DefaultMQPushConsumer d = k.consumer(k.group("dlq"), "c2", FIRST);
        d.subscribe("%DLQ%" + g, "*");
        d.registerMessageListener(dead);
        await(30, "dead letter topic", () -> routeKnown(p, "%DLQ%" + g));
        d.start();
        await(60, "dead letter", () -> dead.bodies().equals(set("r", 0)));
        MessageExt m = dead.got.get(0);
        equal(t, m.getProperty("RETRY_TOPIC"), "RETRY_TOPIC of the dead letter");
        check(m.getProperty("ORIGIN_MESSAGE_ID") != null, "ORIGIN_MESSAGE_ID");
        k.facts.put("deadReconsumeTimes", m.getReconsumeTimes());
        equal(List.of(0, 1, 2), tries.get("r0"), "tries of r0");
        equal(List.of(0, 1), tries.get("r1"), "tries of r1");
        equal(List.of(0), tries.get("r2"), "tries of r2");
    }

    static boolean routeKnown(DefaultMQProducer p, String topic) {
        try {
            return !p.fetchPublishMessageQueues(topic).isEmpty();
        } catch (Exception e) {
            return false;
        }
    }

    static void broadcast(Kit k) throws Exception {
        String t = k.topic("broadcast"), g = k.group("broadcast");
        DefaultMQProducer p = k.producer(k.group("broadcastp"), "p1");
        k.fill(p, t, 2, "early");
        List<Sink> sinks = new ArrayList<>();
        for (int i = 1; i <= 2; i++) {
            Sink s = new Sink();
            DefaultMQPushConsumer c = k.consumer(g, "c" + i, FIRST);
            broadcasting(c);
            c.subscribe(t, "*");
            c.registerMessageListener(s);
            c.start();
            sinks.add(s);
        }
        for (Sink s : sinks) await(30, "early messages", () -> s.bodies().equals(range("early", 0, 2)));
        k.fill(p, t, 4, "b");
        SortedSet<String> want = range("b", 0, 4);
        want.addAll(range("early", 0, 2));
        for (Sink s : sinks) await(30, "broadcast messages", () -> s.bodies().equals(want));
    }

    static Set<Integer> queues(Sink s, String body) {
        Set<Integer> q = new TreeSet<>();
        synchronized (s.got) {
            for (MessageExt m : s.got) if (text(m).startsWith(body)) q.add(m.getQueueId());
        }
        return q;
    }

    /** How many queues of the topic a consumer has taken. */
    static int owned(DefaultMQPushConsumer c, String topic) {
        int n = 0;
        for (MessageQueue q : c.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            if (q.getTopic().equals(topic)) n++;
        }
        return n;
    }

    static DefaultMQPushConsumer consumer(Kit k, String topic, String group, String instance, Sink sink) throws Exception {
        DefaultMQPushConsumer c = k.consumer(group, instance, FIRST);
        c.setPollNameServerInterval(1000);
        c.subscribe(topic, "*");
        c.registerMessageListener(sink);
        c.start();
        return c;
    }

    /** One consumer, then two, then one again; four queues. */
    static void rebalance(Kit k) throws Exception {
        String t = k.topic("rebalance"), g = k.group("rebalance");
        DefaultMQProducer p = k.producer(k.group("rebalancep"), "p1");
        SortedSet<String> sent = range("one", 0, 4);
        k.fill(p, t, 4, "one");
        Sink a = new Sink(), b = new Sink();
        DefaultMQPushConsumer ca = consumer(k, t, g, "c1", a);
        await(30, "all by the first", () -> queues(a, "one").size() == 4);
        long joined = System.currentTimeMillis();
        DefaultMQPushConsumer cb = consumer(k, t, g, "c2", b);
        await(40, "two queues each", () -> owned(ca, t) == 2 && owned(cb, t) == 2);
        k.facts.put("sharedAfterMs", System.currentTimeMillis() - joined);
        probe(k, p, t, "two", a, b, 2, sent);
        long left = System.currentTimeMillis();
        cb.shutdown();
        k.closers.remove(k.closers.size() - 1);
        await(40, "all queues back", () -> owned(ca, t) == 4);
        k.facts.put("takenOverAfterMs", System.currentTimeMillis() - left);
        probe(k, p, t, "three", a, b, 0, sent);
        SortedSet<String> all = a.bodies();
        all.addAll(b.bodies());
        equal(sent, all, "messages");
        k.facts.put("sentAndDelivered", sent.size() + " " + (a.got.size() + b.got.size()));
    }

    /**
     * Sends a message to each queue, in rounds, until those of one round have come
     * once each, from n queues to b and from the others to a. A rebalance that is
     * under way may disturb a round, not for long.
     */
    static void probe(Kit k, DefaultMQProducer p, String topic, String body, Sink a, Sink b, int n, SortedSet<String> sent) throws Exception {
        for (int round = 0; ; round++) {
            String prefix = body + round + "-";
            k.fill(p, topic, 4, prefix);
            sent.addAll(range(prefix, 0, 4));
            await(30, "messages " + prefix, () -> {
                Set<Integer> both = queues(a, prefix);
                both.addAll(queues(b, prefix));
                return both.size() == 4;
            });
            if (queues(a, prefix).size() == 4 - n && queues(b, prefix).size() == n) return;
            check(round < 20, "queues of " + prefix + ": " + queues(a, prefix) + " and " + queues(b, prefix));
            Thread.sleep(500);
        }
    }

    /**
     * Several brokers: args[0] of them. All take part, then one is stopped, then it
     * is back; the driver does that while the scenario pauses.
     */
    static void spread(Kit k) throws Exception {
        int brokers = Integer.parseInt(k.args[0]);
        String t = k.topic("spread"), g = k.group("spread");
        DefaultMQProducer p = k.conf(new DefaultMQProducer(k.group("spreadp")), "p1");
        p.setPollNameServerInterval(1000);
        p.setSendMsgTimeout(10000);
        p.start();
        k.closers.add(p::shutdown);
        // On every broker that has the template topic.
        check(callIfPresent(p, "createTopic", "TBW102", t, 4) || callIfPresent(p, "createTopic", "TBW102", t, 4, Map.of()), "createTopic");
        await(30, "the topic on " + brokers + " brokers", () -> routedBrokers(p, t) == brokers);
        Sink sink = new Sink();
        DefaultMQPushConsumer c = consumer(k, t, g, "c1", sink);
        SortedSet<String> want = new TreeSet<>();
        equal(brokers, spreadOut(p, t, "a", 40, want).size(), "brokers used");
        await(60, "all messages", () -> sink.bodies().equals(want));
        c.getDefaultMQPushConsumerImpl().persistConsumerOffset(); // or the broker that stops does not have it
        await(30, "committed offsets", () -> committed(c, t) == 40);
        k.pause("spread");

        equal(brokers - 1, spreadOut(p, t, "b", 40, want).size(), "brokers used without one");
        await(60, "all messages without one", () -> sink.bodies().equals(want));
        k.pause("without one");

        await(60, "the topic on all brokers again", () -> routedBrokers(p, t) == brokers);
        // The producer learns of it a little later.
        Set<String> used = new HashSet<>();
        for (int i = 0; used.size() < brokers && i < 600; i++) {
            used.addAll(spreadOut(p, t, "c" + i + "-", 4, want));
            Thread.sleep(100);
        }
        equal(brokers, used.size(), "brokers used at the end");
        await(60, "all messages at the end", () -> sink.bodies().equals(want));
        equal(want.size(), sink.got.size(), "no message twice");
    }

    static int routedBrokers(DefaultMQProducer p, String topic) {
        try {
            Set<String> names = new HashSet<>();
            for (MessageQueue q : p.fetchPublishMessageQueues(topic)) names.add(q.getBrokerName());
            return names.size();
        } catch (Exception e) {
            return 0;
        }
    }

    static long committed(DefaultMQPushConsumer c, String topic) {
        long sum = 0;
        for (MessageQueue q : c.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            if (q.getTopic().equals(topic)) {
                sum += Math.max(0, c.getOffsetStore().readOffset(q, org.apache.rocketmq.client.consumer.store.ReadOffsetType.READ_FROM_STORE));
            }
        }
        return sum;
    }

    /** Sends n messages wherever the client likes and returns the brokers that took some. */
    static Set<String> spreadOut(DefaultMQProducer p, String topic, String body, int n, SortedSet<String> want) throws Exception {
        Set<String> names = new HashSet<>();
        for (int i = 0; i < n; i++) {
            SendResult r = p.send(msg(topic, null, body + i, body + i));
            equal(SendStatus.SEND_OK, r.getSendStatus(), "status");
            names.add(r.getMessageQueue().getBrokerName());
            want.add(body + i);
        }
        return names;
    }

    static void orderly(Kit k) throws Exception {
        String t = k.topic("orderly");
        DefaultMQProducer p = k.producer(k.group("orderlyp"), "p1");
        k.fill(p, t, 16, "o");
        Map<Integer, List<String>> got = new ConcurrentHashMap<>();
        AtomicInteger refusals = new AtomicInteger();
        DefaultMQPushConsumer c = k.consumer(k.group("orderly"), "c1", FIRST);
        c.subscribe(t, "*");
        c.registerMessageListener((MessageListenerOrderly) (msgs, ctx) -> {
            for (MessageExt m : msgs) {
                if (text(m).equals("o5") && refusals.getAndIncrement() == 0) return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                got.computeIfAbsent(m.getQueueId(), x -> Collections.synchronizedList(new ArrayList<>())).add(text(m));
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        c.start();
        await(40, "all messages", () -> got.values().stream().mapToInt(List::size).sum() == 16);
        for (int q = 0; q < 4; q++) equal(List.of("o" + q, "o" + (q + 4), "o" + (q + 8), "o" + (q + 12)), got.get(q), "order in queue " + q);
        equal(2, refusals.get(), "tries of o5");
        // A message that is refused for good ends in the dead letter queue.
        String t2 = k.topic("orderly2"), g2 = k.group("orderly2");
        k.fill(p, t2, 4, "d");
        AtomicInteger n = new AtomicInteger();
        Sink ok = new Sink();
        DefaultMQPushConsumer c2 = k.consumer(g2, "c2", FIRST);
        c2.setMaxReconsumeTimes(1);
        c2.subscribe(t2, "*");
        c2.registerMessageListener((MessageListenerOrderly) (msgs, ctx) -> {
            if (text(msgs.get(0)).equals("d0")) {
                n.incrementAndGet();
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            ok.got.addAll(msgs);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        c2.start();
        await(40, "dead letter topic", () -> routeKnown(p, "%DLQ%" + g2));
        equal(range("d", 1, 4), ok.bodies(), "the others");
        k.facts.put("triesOfDead", n.get());
    }

    /** Pop mode: the group must have been switched (mqadmin setConsumeMode -m POP); 5.x client and server. */
    static void pop(Kit k) throws Exception {
        String t = k.topic("pop"), g = k.group("pop");
        DefaultMQProducer p = k.producer(k.group("popp"), "p1");
        k.fill(p, t, 8, "p");
        Map<String, Integer> tries = new ConcurrentHashMap<>();
        DefaultMQPushConsumer c = k.consumer(g, "c1", FIRST);
        check(callIfPresent(c, "setClientRebalance", false), "client knows pop");
        c.subscribe(t, "*");
        c.registerMessageListener((MessageListenerConcurrently) (msgs, ctx) -> {
            boolean again = false;
            for (MessageExt m : msgs) again |= tries.merge(text(m), 1, Integer::sum) == 1 && text(m).equals("p3");
            return again ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        await(60, "all messages", () -> tries.keySet().containsAll(range("p", 0, 8)));
        await(90, "p3 twice", () -> tries.get("p3") >= 2);
        k.fill(p, t, 4, "later");
        await(60, "later messages", () -> tries.keySet().containsAll(range("later", 0, 4)));
    }

    /**
     * A broker without pop tells a consumer that leaves the choice of queues to it.
     * Such a consumer logs that every second and consumes nothing; an ordinary one
     * of the same group works.
     */
    static void popRefused(Kit k) throws Exception {
        String t = k.topic("pop"), g = k.group("pop");
        DefaultMQProducer p = k.producer(k.group("popp"), "p1");
        k.fill(p, t, 8, "p");
        Sink none = new Sink(), all = new Sink();
        DefaultMQPushConsumer c = k.consumer(g, "c1", FIRST);
        check(callIfPresent(c, "setClientRebalance", false), "client knows pop");
        c.subscribe(t, "*");
        c.registerMessageListener(none);
        c.start();
        Object client = c.getDefaultMQPushConsumerImpl().getmQClientFactory();
        try {
            callIfPresent(client, "queryAssignment", t, g, "AVG", c.getMessageModel(), 3000);
            check(false, "assignment given");
        } catch (java.lang.reflect.InvocationTargetException e) {
            if (!(e.getCause() instanceof MQBrokerException)) throw e;
            k.facts.put("assignment", ((MQBrokerException) e.getCause()).getResponseCode());
        }
        c.shutdown();
        k.closers.remove(k.closers.size() - 1);
        equal(0, none.got.size(), "messages without an assignment");
        consumer(k, t, g, "c2", all);
        await(30, "messages by pull", () -> all.bodies().equals(range("p", 0, 8)));
    }

    /** An idle consumer: a whole hold of about 15 s, then a message that wakes a held pull. */
    static void hold(Kit k) throws Exception {
        String t = k.topic("hold");
        DefaultMQProducer p = k.producer(k.group("holdp"), "p1");
        k.fill(p, t, 4, "h");
        Sink s = start(k, t, k.group("hold"), "c1", FIRST, 0);
        await(30, "messages", () -> s.bodies().equals(range("h", 0, 4)));
        Thread.sleep(34000);
        long at = System.currentTimeMillis();
        k.fill(p, t, 1, "wake");
        await(5, "wake", () -> s.bodies().contains("wake0"));
        k.facts.put("wakeMs", System.currentTimeMillis() - at);
    }
}
