package interop;

import java.util.*;
import java.util.concurrent.*;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/** What the scenarios share: names, clients, checks, the summary. */
final class Kit {
    final String namesrv;
    final String scenario;
    final String suffix;
    final String[] args;
    final Map<String, Object> facts = new ConcurrentSkipListMap<>();
    final List<Runnable> closers = new ArrayList<>();
    final Semaphore resume = new Semaphore(0);

    Kit(String namesrv, String scenario, String suffix, String[] args) {
        this.namesrv = namesrv;
        this.scenario = scenario;
        this.suffix = suffix;
        this.args = args;
    }

    /** Tells the driver that a point has been reached, and waits until it says "go". */
    void pause(String event) throws Exception {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("suffix", suffix);
        line.put("event", event);
        Main.print(line);
        check(resume.tryAcquire(120, TimeUnit.SECONDS), "nobody said go after " + event);
    }

    String topic(String base) { return "T_" + base + "_" + suffix; }
    String group(String base) { return "G_" + base + "_" + suffix; }

    <C extends ClientConfig> C conf(C c, String instance) {
        c.setNamesrvAddr(namesrv);
        // The client id is address@instance: it must differ between scenarios.
        c.setInstanceName(instance + "-" + scenario + "-" + suffix);
        // A rebalance changes the subscription, and the client skips the heartbeat
        // that tells the broker if another is under way. It then consumes nothing
        // until the next one, which is half a minute later by default. Heartbeats of
        // the second kind do not repeat the subscription at all: see remind.
        c.setHeartbeatBrokerInterval(Integer.getInteger("interop.heartbeatMs", 5000));
        return c;
    }

    DefaultMQProducer producer(String group, String instance) throws Exception {
        DefaultMQProducer p = conf(new DefaultMQProducer(group), instance);
        p.setSendMsgTimeout(10000); // the machine may be busy
        p.start();
        closers.add(p::shutdown);
        return p;
    }

    /** The queues of a topic; a new one may take a moment to reach the name server. */
    static List<MessageQueue> queues(DefaultMQProducer p, String topic) throws Exception {
        await(20, "route of " + topic, () -> {
            try {
                return !p.fetchPublishMessageQueues(topic).isEmpty();
            } catch (Exception e) {
                return false;
            }
        });
        return p.fetchPublishMessageQueues(topic);
    }

    /** A consumer not yet started. */
    DefaultMQPushConsumer consumer(String group, String instance, ConsumeFromWhere from) {
        DefaultMQPushConsumer c = conf(new DefaultMQPushConsumer(group), instance);
        c.setConsumeFromWhere(from);
        closers.add(c::shutdown);
        if (Boolean.getBoolean("com.rocketmq.heartbeat.v2")) remind(c);
        return c;
    }

    /** Makes the client tell the broker its subscriptions now and then, as ordinary heartbeats do. */
    private static void remind(DefaultMQPushConsumer c) {
        Thread t = new Thread(() -> {
            try {
                for (;;) {
                    Thread.sleep(4000);
                    Object client = c.getDefaultMQPushConsumerImpl().getmQClientFactory();
                    if (client != null) callIfPresent(client, "sendHeartbeatToAllBrokerWithLockV2", true);
                }
            } catch (Exception e) {
                e.printStackTrace();
            }
        });
        t.setDaemon(true);
        t.start();
    }

    /** Collects messages; the key of a message is its body text. */
    static final class Sink implements MessageListenerConcurrently {
        final List<MessageExt> got = Collections.synchronizedList(new ArrayList<>());

        public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> msgs, ConsumeConcurrentlyContext ctx) {
            got.addAll(msgs);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }

        SortedSet<String> bodies() {
            SortedSet<String> s = new TreeSet<>();
            synchronized (got) {
                for (MessageExt m : got) s.add(text(m));
            }
            return s;
        }
    }

    static String text(Message m) { return new String(m.getBody(), java.nio.charset.StandardCharsets.UTF_8); }
    static byte[] bytes(String s) { return s.getBytes(java.nio.charset.StandardCharsets.UTF_8); }

    static Message msg(String topic, String tags, String keys, String body) {
        return new Message(topic, tags, keys, bytes(body));
    }

    /** Sends n messages body0…, round robin over the tags, to the queues of the topic in turn. */
    List<SendResult> fill(DefaultMQProducer p, String topic, int n, String body, String... tags) throws Exception {
        List<SendResult> rs = new ArrayList<>();
        for (int i = 0; i < n; i++) {
            String tag = tags.length == 0 ? null : tags[i % tags.length];
            final int q = i;
            SendResult r = p.send(msg(topic, tag, "k" + i, body + i), (mqs, m, arg) -> {
                for (MessageQueue mq : mqs) if (mq.getQueueId() == q % mqs.size()) return mq;
                return mqs.get(0);
            }, null);
            check(r.getSendStatus() == SendStatus.SEND_OK, "send status " + r);
            rs.add(r);
        }
        queues(p, topic);
        return rs;
    }

    static SortedSet<String> set(String body, int... numbers) {
        SortedSet<String> s = new TreeSet<>();
        for (int n : numbers) s.add(body + n);
        return s;
    }

    static SortedSet<String> range(String body, int from, int to) {
        SortedSet<String> s = new TreeSet<>();
        for (int i = from; i < to; i++) s.add(body + i);
        return s;
    }

    static void check(boolean ok, String what) {
        if (!ok) throw new AssertionError(what);
    }

    static void equal(Object want, Object got, String what) {
        if (!Objects.equals(want, got)) throw new AssertionError(what + ": want " + want + ", got " + got);
    }

    static void await(int seconds, String what, BooleanSupplier ok) throws Exception {
        long end = System.currentTimeMillis() + seconds * 1000L;
        while (!ok.getAsBoolean()) {
            if (System.currentTimeMillis() > end) throw new AssertionError("timed out waiting for " + what);
            Thread.sleep(50);
        }
    }

    /** MessageModel moved between 4.x and 5.x. */
    static void broadcasting(Object consumer) throws Exception {
        for (java.lang.reflect.Method m : consumer.getClass().getMethods()) {
            if (m.getName().equals("setMessageModel")) {
                for (Object e : m.getParameterTypes()[0].getEnumConstants()) {
                    if (e.toString().equals("BROADCASTING")) {
                        m.invoke(consumer, e);
                        return;
                    }
                }
            }
        }
        throw new AssertionError("no setMessageModel");
    }

    /** Calls a method that exists in some client versions only; false if it does not. */
    static boolean callIfPresent(Object o, String name, Object... args) throws Exception {
        for (java.lang.reflect.Method m : o.getClass().getMethods()) {
            if (m.getName().equals(name) && m.getParameterCount() == args.length) {
                m.invoke(o, args);
                return true;
            }
        }
        return false;
    }
}
