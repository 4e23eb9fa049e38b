import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.time.Duration;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Prints the first COUNT records of a topic, one a line: java ReadRecords.java SERVERS TOPIC COUNT. */
class ReadRecords {
    static String hex(byte[] data) {
        return data == null ? "null" : '"' + HexFormat.of().formatHex(data) + '"';
    }

    static String header(Header one) {
        return "[" + hex(one.key().getBytes(java.nio.charset.StandardCharsets.UTF_8)) + ", " + hex(one.value()) + "]";
    }

    static String json(ConsumerRecord<byte[], byte[]> record) {
        List<String> headers = new ArrayList<>();
        for (Header one : record.headers()) headers.add(header(one));
        return String.format(
                "{\"partition\": %d, \"timestamp\": %d, \"key\": %s, \"value\": %s, \"headers\": %s}",
                record.partition(), record.timestamp(), hex(record.key()), hex(record.value()), headers);
    }

    public static void main(String[] arguments) {
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0], "isolation.level", "read_committed");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            List<TopicPartition> all = consumer.partitionsFor(arguments[1]).stream()
                    .map(one -> new TopicPartition(one.topic(), one.partition()))
                    .collect(Collectors.toList());
            consumer.assign(all);
            consumer.seekToBeginning(all);
            int left = Integer.parseInt(arguments[2]);
            while (left > 0) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(json(record));
                    left--;
                }
            }
        }
    }
}
