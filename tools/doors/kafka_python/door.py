"""kafka-python produces numbers to a topic. See README.md above for the arguments."""

import sys
import time

from kafka import KafkaProducer

servers, topic, first, count, acked, *rest = sys.argv[1:]
per_second = float(rest[0]) if rest else 1e6
settings = {"bootstrap_servers": servers, "acks": "all", "batch_size": 4096, "max_block_ms": 120_000}
wanted = {"enable_idempotence": True, "delivery_timeout_ms": 180_000}
if wanted.keys() <= KafkaProducer.DEFAULT_CONFIG.keys():
    settings |= wanted
else:
    # Before release 2.1: a request that fails is sent again behind those that are on their way.
    settings |= {"retries": 2000, "max_in_flight_requests_per_connection": 1}
with open(acked, "w") as acks:

    def note(number, done):
        print(number, done.partition, done.offset, file=acks)

    def note_failed(number, error):
        print(number, "failed", repr(error), file=acks)

    producer = KafkaProducer(**settings)
    begin = time.monotonic()
    for at in range(int(count)):
        if at % 20 == 0:
            time.sleep(max(0, begin + at / per_second - time.monotonic()))
        number = int(first) + at
        value, key = str(number).encode(), str(number % 10).encode()
        future = producer.send(topic, value, key, [("n", value)])
        future.add_callback(note, number)
        future.add_errback(note_failed, number)
    producer.flush()
    producer.close()
