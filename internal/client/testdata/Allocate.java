// Writes how upstream shares out queues, with the jars of
// org.apache.rocketmq:rocketmq-client (5.4.0) in LIB:
//
//	java -cp 'LIB/*' Allocate.java allocate.txt
//
// A line is: queues | members | member=queue,queue ...
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.message.MessageQueue;

public class Allocate {
    static final String[] BROKERS = {"broker-b", "broker-a", "a10", "a9", "Z"};
    static final String[] MEMBERS = {"10.0.0.9@1", "10.0.0.10@1", "b@2#7", "B@2", "c1", "c10", "c2"};

    public static void main(String[] args) throws Exception {
        AllocateMessageQueueAveragely strategy = new AllocateMessageQueueAveragely();
        StringBuilder out = new StringBuilder();
        for (int queues = 0; queues <= 17; queues++) {
            for (int members = 1; members <= MEMBERS.length; members++) {
                List<MessageQueue> all = new ArrayList<>();
                for (int i = 0; i < queues; i++) {
                    all.add(new MessageQueue("T", BROKERS[i % BROKERS.length], 11 - i / BROKERS.length * 3));
                }
                List<String> ids = new ArrayList<>();
                for (int i = 0; i < members; i++) {
                    ids.add(MEMBERS[i]);
                }
                for (MessageQueue q : all) {
                    out.append(name(q)).append(' ');
                }
                out.append('|').append(String.join(" ", ids)).append('|');
                // What RebalanceImpl does before it asks the strategy.
                Collections.sort(all);
                Collections.sort(ids);
                List<String> shares = new ArrayList<>();
                for (String id : ids) {
                    List<String> names = new ArrayList<>();
                    for (MessageQueue q : queues == 0 ? new ArrayList<MessageQueue>() : strategy.allocate("G", id, all, ids)) {
                        names.add(name(q));
                    }
                    shares.add(id + "=" + String.join(",", names));
                }
                out.append(String.join(" ", shares)).append('\n');
            }
        }
        Files.writeString(Path.of(args[0]), out);
    }

    static String name(MessageQueue q) {
        return q.getBrokerName() + "/" + q.getQueueId();
    }
}
