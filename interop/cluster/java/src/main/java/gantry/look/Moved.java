package gantry.look;

import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Calls whose results are of classes that moved between 4.9 and 5.x (from
 * common.protocol and common.admin to remoting.protocol).
 */
final class Moved {
    static Map<String, Object> topics(DefaultMQAdminExt admin, String broker) throws Exception {
        Map<String, Object> out = new TreeMap<>();
        Object wrapper = admin.getClass().getMethod("getAllTopicConfig", String.class, long.class).invoke(admin, broker, 10000L);
        for (Map.Entry<?, ?> e : ((Map<?, ?>) get(wrapper, "getTopicConfigTable")).entrySet()) {
            Object c = e.getValue();
            out.put(e.getKey().toString(), "read " + get(c, "getReadQueueNums") + ", write " + get(c, "getWriteQueueNums") + ", perm " + get(c, "getPerm")
                + ", sysFlag " + get(c, "getTopicSysFlag") + ", order " + get(c, "isOrder") + ", filter " + get(c, "getTopicFilterType"));
        }
        return out;
    }

    static Map<String, Object> groups(DefaultMQAdminExt admin, String broker) throws Exception {
        Map<String, Object> out = new TreeMap<>();
        Object wrapper = admin.getClass().getMethod("getAllSubscriptionGroup", String.class, long.class).invoke(admin, broker, 10000L);
        for (Map.Entry<?, ?> e : ((Map<?, ?>) get(wrapper, "getSubscriptionGroupTable")).entrySet()) {
            Object c = e.getValue();
            out.put(e.getKey().toString(), "enable " + get(c, "isConsumeEnable") + ", fromMin " + get(c, "isConsumeFromMinEnable")
                + ", broadcast " + get(c, "isConsumeBroadcastEnable") + ", retries " + get(c, "getRetryMaxTimes") + " in " + get(c, "getRetryQueueNums"));
        }
        return out;
    }

    static Map<String, Object> topicStats(DefaultMQAdminExt admin, String topic) throws Exception {
        Map<String, Object> out = new TreeMap<>();
        Object table = admin.getClass().getMethod("examineTopicStats", String.class).invoke(admin, topic);
        for (Map.Entry<?, ?> e : ((Map<?, ?>) get(table, "getOffsetTable")).entrySet()) {
            out.put(Integer.toString(((MessageQueue) e.getKey()).getQueueId()), get(e.getValue(), "getMinOffset") + "-" + get(e.getValue(), "getMaxOffset"));
        }
        return out;
    }

    static Map<String, Object> consumeStats(DefaultMQAdminExt admin, String group) throws Exception {
        Map<String, Object> out = new TreeMap<>();
        Object stats = admin.getClass().getMethod("examineConsumeStats", String.class).invoke(admin, group);
        for (Map.Entry<?, ?> e : ((Map<?, ?>) get(stats, "getOffsetTable")).entrySet()) {
            MessageQueue q = (MessageQueue) e.getKey();
            out.put(q.getTopic() + "/" + q.getQueueId(), get(e.getValue(), "getConsumerOffset"));
        }
        return out;
    }

    static Object get(Object o, String getter) throws Exception {
        return o.getClass().getMethod(getter).invoke(o);
    }

    private Moved() { }
}
