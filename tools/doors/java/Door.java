// Java's KafkaProducer produces numbers to a topic. See README.md beside this folder for the arguments.
// Build: javac -cp 'JARS/*' -d OUT Door.java; run: java -cp 'OUT:JARS/*' Door ...

import java.io.PrintWriter;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class Door {
    public static void main(String[] args) throws Exception {
        int first = Integer.parseInt(args[2]), count = Integer.parseInt(args[3]);
        int perSecond = args.length > 5 ? Integer.parseInt(args[5]) : 1_000_000;
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("acks", "all");
        settings.put("batch.size", 4096);
        settings.put("linger.ms", 5);
        settings.put("delivery.timeout.ms", 180_000);
        settings.put("max.block.ms", 120_000);
        try (PrintWriter acked = new PrintWriter(args[4]);
                KafkaProducer<String, String> producer =
                        new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            long begin = System.nanoTime();
            for (int at = 0; at < count; at++) {
                if (at % 20 == 0) {
                    long passed = (System.nanoTime() - begin) / 1_000_000;
                    Thread.sleep(Math.max(0, at * 1000L / perSecond - passed));
                }
                String number = Integer.toString(first + at);
                ProducerRecord<String, String> record =
                        new ProducerRecord<>(args[1], Integer.toString((first + at) % 10), number);
                record.headers().add("n", number.getBytes());
                producer.send(record, (done, error) -> {
                    synchronized (acked) {
                        acked.println(error == null
                                ? number + " " + done.partition() + " " + done.offset()
                                : number + " failed " + error);
                    }
                });
            }
            producer.flush();
        }
    }
}
