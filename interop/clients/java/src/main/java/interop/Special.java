package interop;

import static interop.Kit.*;

import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.*;

final class Special {
    static void register(Map<String, Main.Scenario> m) {
        m.put("transaction", Special::transaction);
        m.put("request-reply", Special::requestReply);
    }

    /** Commit, rollback, unknown then commit on check, unknown then rollback on check. */
    static void transaction(Kit k) throws Exception {
        String t = k.topic("tx");
        k.fill(k.producer(k.group("txp"), "p1"), t, 1, "plain");
        Map<String, AtomicInteger> checks = new ConcurrentHashMap<>();
        TransactionMQProducer p = k.conf(new TransactionMQProducer(k.group("tx")), "p2");
        p.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message m, Object arg) {
                if (text(m).startsWith("commit")) return LocalTransactionState.COMMIT_MESSAGE;
                if (text(m).startsWith("rollback")) return LocalTransactionState.ROLLBACK_MESSAGE;
                return LocalTransactionState.UNKNOW;
            }

            public LocalTransactionState checkLocalTransaction(MessageExt m) {
                check(m.getTopic().equals(t), "checked message shows its own topic");
                int n = checks.computeIfAbsent(text(m), x -> new AtomicInteger()).incrementAndGet();
                if (text(m).startsWith("stay")) return n < 2 ? LocalTransactionState.UNKNOW : LocalTransactionState.COMMIT_MESSAGE;
                return text(m).startsWith("ask-yes") ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        p.start();
        k.closers.add(p::shutdown);
        Sink sink = new Sink();
        DefaultMQPushConsumer c = k.consumer(k.group("txc"), "c1", Consume.FIRST);
        c.subscribe(t, "*");
        c.registerMessageListener(sink);
        c.start();
        for (String b : new String[] {"commit0", "rollback0", "ask-yes0", "ask-no0", "stay0"}) {
            TransactionSendResult r = p.sendMessageInTransaction(msg(t, "tx", b, b), null);
            equal(SendStatus.SEND_OK, r.getSendStatus(), "half message");
            k.facts.put("transactionIdGiven", r.getTransactionId() != null); // 4.9.x brokers do not send one
        }
        SortedSet<String> want = new TreeSet<>(List.of("plain0", "commit0"));
        await(30, "commit", () -> sink.bodies().containsAll(want));
        want.addAll(List.of("ask-yes0", "stay0"));
        await(60, "checked commits", () -> sink.bodies().equals(want));
        await(30, "checked rollback", () -> checks.containsKey("ask-no0"));
        Thread.sleep(1000);
        equal(want, sink.bodies(), "messages");
        k.facts.put("checks", checks);
        for (MessageExt m : sink.got) {
            if (text(m).equals("commit0")) {
                k.facts.put("propertiesOfCommitted", m.getProperties().keySet()); // 4.9.x keeps REAL_TOPIC and REAL_QID
                check(m.getPreparedTransactionOffset() > 0, "prepared offset");
            }
        }
    }

    static void requestReply(Kit k) throws Exception {
        String t = k.topic("rr");
        DefaultMQProducer asker = k.producer(k.group("asker"), "p1");
        k.fill(asker, t, 1, "warm");
        DefaultMQProducer replier = k.producer(k.group("replier"), "p2");
        DefaultMQPushConsumer c = k.consumer(k.group("rr"), "c1", Consume.FIRST);
        c.subscribe(t, "*");
        CountDownLatch warm = new CountDownLatch(1);
        c.registerMessageListener((MessageListenerConcurrently) (msgs, ctx) -> {
            for (MessageExt m : msgs) {
                if (m.getProperty("CORRELATION_ID") == null) {
                    warm.countDown();
                    continue;
                }
                try {
                    replier.send(MessageUtil.createReplyMessage(m, bytes("re:" + text(m))), 3000);
                } catch (Exception e) {
                    e.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        check(warm.await(30, TimeUnit.SECONDS), "first message");
        // The broker knows the asker by its first heartbeat, which comes a second
        // after the start; until then a reply cannot be pushed.
        for (int i = 0; ; i++) {
            try {
                equal("re:first", text(asker.request(msg(t, "q", null, "first"), 3000)), "first reply");
                break;
            } catch (RequestTimeoutException e) {
                if (i == 4) throw e;
            }
        }
        for (int i = 0; i < 2; i++) {
            Message r = asker.request(msg(t, "q", null, "q" + i), 10000);
            equal("re:q" + i, text(r), "reply");
        }
        CompletableFuture<String> f = new CompletableFuture<>();
        asker.request(msg(t, "q", null, "async"), new RequestCallback() {
            public void onSuccess(Message m) { f.complete(text(m)); }
            public void onException(Throwable e) { f.completeExceptionally(e); }
        }, 10000);
        equal("re:async", f.get(15, TimeUnit.SECONDS), "asynchronous reply");
    }
}
