"""A Kafka client into bruce's Kafka input, against the same client straight into one real broker.

The client is librdkafka in a C program (acks=all, idempotent, a report a message), in both. bruce delivers
to the same broker meanwhile, on the same processors. Accepted is acknowledged: on bruce's disk, or by the
broker.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator

from cli.status.snapshot import ROLES
from spool.shared.state import WORKER_WORDS, Field
from tests.daemon import free_port
from tools.benches.bench import TOPIC, Bench, await_delivered
from tools.benches.machine import Skipped, compile_c, cpu_seconds, librdkafka_path
from tools.benches.report import Figure
from tools.bruce_process import Bruce
from tools.payload import KEY_BYTES

REQUIRED = 300_000
TIMEOUT_S = 600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options for the messages."""
    parser.add_argument("--count", type=int, default=3_000_000)
    parser.add_argument("--bytes", type=int, default=120, help="of key and value together; default 120")
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--away", action="store_true", help="stop Kafka while bruce accepts")


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Both by turns. Raises Skipped, KafkaMissing."""
    rates, bases, cpus, clients = list[float](), list[float](), list[float](), list[float]()
    for _ in range(bench.repeat):
        with bench.kafka("real", brokers=1, partitions=options.partitions) as kafka:
            rate, cpu = _produce(bench, kafka.bootstrap, options)
            bases.append(rate)
            clients.append(cpu)
        with bench.kafka("real", brokers=1, partitions=options.partitions) as kafka:
            port = free_port()
            with bench.bruce(kafka.bootstrap, inputs=[{"kafka": port}]) as bruce:
                bruce.start()
                _warm_up(bench, port, options)
                await_delivered(bruce, TIMEOUT_S)
                if options.away:
                    kafka.stop_all()
                before = _cpu_of(bruce)
                rates.append(_produce(bench, f"127.0.0.1:{port}", options)[0])
                used = _cpu_of(bruce) - before
                cpus.append(1e6 * used / bench.scaled(options.count))
    yield Figure("accepted from librdkafka", rates, "msg/s", at_least=REQUIRED)
    yield Figure("beside one real broker", rates, "msg/s", baseline=bases)
    yield Figure("CPU of the Kafka and ingest workers", cpus, "µs/msg", baseline=clients)


def _warm_up(bench: Bench, port: int, options: argparse.Namespace) -> None:
    few = argparse.Namespace(**{**vars(options), "count": 20_000 / bench.scale})
    _produce(bench, f"127.0.0.1:{port}", few)


def _cpu_of(bruce: Bruce) -> float:
    shared = bruce.shared()
    assert shared is not None
    rows = (ROLES.index(role) for role in ("kafka", "ingest"))
    return sum(cpu_seconds(int(shared[Field.WORKERS + WORKER_WORDS * row])) for row in rows)


def _produce(bench: Bench, servers: str, options: argparse.Namespace) -> tuple[float, float]:
    """The C program: (messages a second, CPU in µs a message)."""
    program, count = compile_c("produce_librdkafka", bench.programs), bench.scaled(options.count)
    command = [program, librdkafka_path(), servers, TOPIC, options.partitions, count]
    done = subprocess.run(
        [*map(str, command), str(options.bytes - KEY_BYTES), "0"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    said = json.loads(done.stdout)
    if said["failed"]:
        raise Skipped(f"the C program had {said['failed']} failed messages")
    return 0.9 * count / said["seconds"], 1e6 * said["cpu_seconds"] / count
