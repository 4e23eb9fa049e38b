"""aiokafka produces numbers to a topic. See README.md above for the arguments."""

import asyncio
import sys
import time

from aiokafka import AIOKafkaProducer


async def main(servers, topic, first, count, acked, per_second="1e6"):
    # A record is given up after request_timeout_ms, or never by an idempotent producer.
    producer = AIOKafkaProducer(
        bootstrap_servers=servers, enable_idempotence=True, max_batch_size=4096, request_timeout_ms=120_000
    )
    await producer.start()
    with open(acked, "w") as acks:

        def note(number, future):
            if future.exception():
                print(number, "failed", repr(future.exception()), file=acks)
            else:
                print(number, future.result().partition, future.result().offset, file=acks)

        begin = time.monotonic()
        for at in range(int(count)):
            if at % 20 == 0:
                await asyncio.sleep(max(0, begin + at / float(per_second) - time.monotonic()))
            number = int(first) + at
            value, key = str(number).encode(), str(number % 10).encode()
            future = await producer.send(topic, value, key, headers=[("n", value)])
            future.add_done_callback(lambda done, number=number: note(number, done))
        await producer.stop()


asyncio.run(main(*sys.argv[1:]))
