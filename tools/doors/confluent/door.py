"""confluent-kafka (librdkafka) produces numbers to a topic. See README.md above for the arguments."""

import sys
import time

from confluent_kafka import Producer

servers, topic, first, count, acked, *rest = sys.argv[1:]
per_second = float(rest[0]) if rest else 1e6
with open(acked, "w") as acks:

    def note(error, record):
        number = record.value().decode()
        outcome = f"failed {error}" if error else f"{record.partition()} {record.offset()}"
        print(number, outcome, file=acks)

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "acks": "all",
            "batch.size": 4096,
            "message.timeout.ms": 180_000,
            "on_delivery": note,
        }
    )
    begin = time.monotonic()
    for at in range(int(count)):
        if at % 20 == 0:
            time.sleep(max(0, begin + at / per_second - time.monotonic()))
        number = str(int(first) + at)
        while True:
            try:
                producer.produce(topic, number, str(int(number) % 10), headers={"n": number})
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    sys.exit(producer.flush(180))
