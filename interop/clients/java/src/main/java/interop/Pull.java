package interop;

import static interop.Kit.*;

import java.util.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.message.*;

@SuppressWarnings("deprecation")
final class Pull {
    static void register(Map<String, Main.Scenario> m) {
        m.put("pull", Pull::pull);
        m.put("litepull-assign", Pull::assign);
        m.put("litepull-subscribe", Pull::subscribe);
    }

    /** DefaultMQPullConsumer: explicit queues and offsets. */
    static void pull(Kit k) throws Exception {
        String t = k.topic("pull");
        DefaultMQProducer p = k.producer(k.group("pullp"), "p1");
        k.fill(p, t, 4, "early", "a");
        // Nearer to the later messages: 4.9.x answers the nearest message, 5.x the next.
        Thread.sleep(1500);
        long mid = System.currentTimeMillis();
        Thread.sleep(20);
        k.fill(p, t, 8, "m", "a", "b");
        DefaultMQPullConsumer c = k.conf(new DefaultMQPullConsumer(k.group("pull")), "c1");
        c.setConsumerPullTimeoutMillis(10000);
        c.start();
        k.closers.add(c::shutdown);
        Set<MessageQueue> mqs = c.fetchSubscribeMessageQueues(t);
        equal(4, mqs.size(), "queues");
        SortedSet<String> got = new TreeSet<>();
        for (MessageQueue q : mqs) {
            equal(0L, c.minOffset(q), "min");
            await(10, "max", () -> max(c, q) == 3); // the queue is built behind the log
            equal(1L, c.searchOffset(q, mid), "offset by time");
            check(c.earliestMsgStoreTime(q) > 0, "earliest");
            check(c.fetchConsumeOffset(q, true) <= 0, "no offset yet");
            PullResult r = c.pull(q, "*", 1, 32);
            equal(PullStatus.FOUND, r.getPullStatus(), "status");
            equal(3L, r.getNextBeginOffset(), "next");
            for (MessageExt m : r.getMsgFoundList()) got.add(text(m));
            c.updateConsumeOffset(q, r.getNextBeginOffset());
            equal(PullStatus.NO_NEW_MSG, c.pull(q, "*", 3, 32).getPullStatus(), "at the end");
            PullResult far = c.pull(q, "*", 100, 32);
            equal(PullStatus.OFFSET_ILLEGAL, far.getPullStatus(), "beyond the end");
            equal(3L, far.getNextBeginOffset(), "corrected");
            PullResult none = c.pull(q, "nosuchtag", 0, 32);
            equal(PullStatus.NO_MATCHED_MSG, none.getPullStatus(), "no match");
            equal(3L, none.getNextBeginOffset(), "after no match");
        }
        equal(range("m", 0, 8), got, "messages");
        MessageQueue q0 = null;
        for (MessageQueue q : mqs) if (q.getQueueId() == 0) q0 = q;
        PullResult two = c.pull(q0, "*", 0, 2);
        equal(2, two.getMsgFoundList().size(), "max two");
        PullResult sel = c.pull(q0, MessageSelector.byTag("a"), 0, 32);
        equal(3, sel.getMsgFoundList().size(), "tag a on queue 0");
        // A held pull that a message ends.
        final MessageQueue fq = q0;
        Thread later = new Thread(() -> {
            try {
                Thread.sleep(1500);
                p.send(msg(t, "a", null, "late"), fq);
            } catch (Exception e) {
                e.printStackTrace();
            }
        });
        later.start();
        PullResult r = c.pullBlockIfNotFound(q0, "*", 3, 32);
        equal(PullStatus.FOUND, r.getPullStatus(), "held pull");
        equal("late", text(r.getMsgFoundList().get(0)), "held pull");
        later.join();
        // Every five seconds this client forgets the offsets of queues that nobody gave it.
        for (MessageQueue q : mqs) c.updateConsumeOffset(q, 3);
        c.getOffsetStore().persistAll(mqs);
        Thread.sleep(300);
        for (MessageQueue q : mqs) equal(3L, c.fetchConsumeOffset(q, true), "committed");
    }

    static long max(DefaultMQPullConsumer c, MessageQueue q) {
        try {
            return c.maxOffset(q);
        } catch (Exception e) {
            return -1;
        }
    }

    static void assign(Kit k) throws Exception {
        String t = k.topic("lite");
        DefaultMQProducer p = k.producer(k.group("litep"), "p1");
        k.fill(p, t, 4, "early", "a");
        // Nearer to the later messages: 4.9.x answers the nearest message, 5.x the next.
        Thread.sleep(1500);
        long mid = System.currentTimeMillis();
        Thread.sleep(20);
        k.fill(p, t, 8, "m", "a", "b");
        DefaultLitePullConsumer c = k.conf(new DefaultLitePullConsumer(k.group("lite")), "c1");
        c.setAutoCommit(false);
        c.start();
        k.closers.add(c::shutdown);
        Collection<MessageQueue> mqs = c.fetchMessageQueues(t);
        equal(4, mqs.size(), "queues");
        c.assign(mqs);
        for (MessageQueue q : mqs) {
            equal(1L, c.offsetForTimestamp(q, mid), "offset by time");
            c.seek(q, 1);
        }
        // What was fetched before the seek may still come.
        SortedSet<String> got = new TreeSet<>();
        for (int i = 0; i < 40 && got.size() < 8; i++) {
            for (MessageExt m : c.poll(500)) if (!text(m).startsWith("early")) got.add(text(m));
        }
        equal(range("m", 0, 8), got, "messages");
        c.commitSync();
        Thread.sleep(300);
        for (MessageQueue q : mqs) equal(3L, c.committed(q), "committed");
        MessageQueue q = mqs.iterator().next();
        c.seekToBegin(q);
        int n = 0;
        for (int i = 0; i < 40 && n < 3; i++) n += c.poll(500).size();
        equal(3, n, "from the beginning");
        c.seekToEnd(q);
        equal(0, c.poll(1000).size(), "at the end");
        p.send(msg(t, "a", null, "late"), q);
        List<MessageExt> late = new ArrayList<>();
        for (int i = 0; i < 20 && late.isEmpty(); i++) late.addAll(c.poll(500));
        equal("late", text(late.get(0)), "late message");
    }

    static void subscribe(Kit k) throws Exception {
        String t = k.topic("litesub");
        DefaultMQProducer p = k.producer(k.group("litesubp"), "p1");
        k.fill(p, t, 8, "m", "a", "b");
        DefaultLitePullConsumer c = k.conf(new DefaultLitePullConsumer(k.group("litesub")), "c1");
        c.setConsumeFromWhere(org.apache.rocketmq.common.consumer.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.subscribe(t, "a");
        c.setAutoCommitIntervalMillis(1000);
        c.start();
        k.closers.add(c::shutdown);
        SortedSet<String> got = new TreeSet<>();
        for (int i = 0; i < 40 && got.size() < 4; i++) for (MessageExt m : c.poll(500)) got.add(text(m));
        equal(set("m", 0, 2, 4, 6), got, "messages");
        k.fill(p, t, 4, "n", "a");
        for (int i = 0; i < 40 && got.size() < 8; i++) for (MessageExt m : c.poll(500)) got.add(text(m));
        equal(8, got.size(), "later messages");
        // The automatic commit happens inside poll.
        for (int i = 0; i < 4; i++) c.poll(400);
    }
}
