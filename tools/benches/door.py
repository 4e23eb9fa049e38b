"""Kafka clients into bruce's Kafka input, against the same clients straight into one real broker.

The clients are librdkafka in a C program, and Kafka's own performance tool in Java, with its defaults and
with larger batches, all with acks=all, idempotent. bruce delivers to the same broker meanwhile, on the same
processors, unless Kafka is away. Accepted is acknowledged: on bruce's disk, or by the broker. Latency is from
send to callback, of librdkafka under Python without linger, at 1,000 messages a second. Each broker has had
as many messages before, and with them the time to compile itself.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from confluent_kafka import KafkaError, Message, Producer

from tests.daemon import free_port
from tools.benches.bench import TOPIC, Bench, await_delivered
from tools.benches.machine import Skipped, compile_c, cpu_seconds, librdkafka_path
from tools.benches.report import Figure
from tools.bruce_process import Bruce
from tools.kafka_install import CACHE, VERSION
from tools.maven_jars import JarsMissing, MavenJars
from tools.payload import KEY_BYTES
from tools.targets import Target

CLIENTS = ("c", "java", "java-large", "latency")
REQUIRED = 300_000
P99_MS = 30.0
"""The sync interval and 10 ms."""
LATENCY_RATE = 1000
LATENCY_S, WARM_S = 10.0, 30.0
TIMEOUT_S = 600.0
_WARM_MESSAGES = 20_000
_LARGE = "batch.size=131072"
"""As users set it who want throughput; Java's default is 16,384 bytes."""
_POM = Path(__file__).resolve().parent.parent / "perf_jars/pom.xml"
_JARS = MavenJars(f"Kafka's performance tool {VERSION}", _POM, CACHE.parent / "kafka-perf" / VERSION)
_RATE = re.compile(r" ([0-9.]+) records/sec")

Client = Callable[[str, int], float]
"""(servers, messages): those that were acknowledged a second."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options for the messages."""
    parser.add_argument("--count", type=int, default=3_000_000)
    parser.add_argument("--bytes", type=int, default=120, help="of key and value together; default 120")
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--away", action="store_true", help="stop Kafka while bruce accepts")
    parser.add_argument("--client", nargs="+", choices=CLIENTS, default=CLIENTS)


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Each client into both by turns. Raises Skipped, KafkaMissing."""
    runs: dict[str, Client] = {
        "c": _from_c(bench, options),
        "java": _from_java(options),
        "java-large": _from_java(options, _LARGE),
    }
    names = {"c": "librdkafka in C", "java": "Java's tool", "java-large": f"Java's tool, {_LARGE}"}
    for which in (one for one in options.client if one in runs):
        yield from _measure_rate(bench, options, names[which], runs[which])
    if "latency" in options.client:
        yield from _measure_latency(bench, options)


def _measure_rate(bench: Bench, options: argparse.Namespace, name: str, client: Client) -> Iterator[Figure]:
    rates, bases, cpus, own = (list[float]() for _ in range(4))
    count = bench.scaled(options.count)
    for _ in range(bench.repeat):
        with _broker(bench, options) as kafka:
            client(kafka.bootstrap, count)
            bases.append(client(kafka.bootstrap, count))
        with _broker(bench, options) as kafka, _door(bench, kafka) as bruce:
            client(kafka.bootstrap, count)
            client(_address(bruce), _WARM_MESSAGES)
            await_delivered(bruce, TIMEOUT_S)
            if options.away:
                kafka.stop_all()
            before, of_clients = _cpu_of(bruce), _cpu_of_clients()
            rates.append(client(_address(bruce), count))
            cpus.append(1e6 * (_cpu_of(bruce) - before) / count)
            own.append(1e6 * (_cpu_of_clients() - of_clients) / count)
    yield Figure(f"accepted from {name}", rates, "msg/s", at_least=REQUIRED)
    yield Figure(f"{name}, beside one real broker", rates, "msg/s", baseline=bases, at_least=1)
    yield Figure(f"{name}: CPU of the Kafka and ingest workers", cpus, "µs/msg")
    most = f"all processors would do {1e6 * (os.cpu_count() or 1) / statistics.median(own):,.0f} msg/s of it"
    yield Figure(f"{name}: its own CPU", own, "µs/msg", remark=most)


def _measure_latency(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    ours, theirs = list[list[float]](), list[list[float]]()
    for _ in range(bench.repeat):
        with _broker(bench, options) as kafka:
            _latency(kafka.bootstrap, options, WARM_S * bench.scale)
            theirs.append(_latency(kafka.bootstrap, options, LATENCY_S * bench.scale))
            with _door(bench, kafka) as bruce:
                _latency(_address(bruce), options, WARM_S * bench.scale / 10)
                if options.away:
                    kafka.stop_all()
                    # A broker that ends has work to do.
                    _latency(_address(bruce), options, WARM_S * bench.scale / 3)
                ours.append(_latency(_address(bruce), options, LATENCY_S * bench.scale))
    for place, (name, most) in enumerate((("p50", None), ("p99", P99_MS))):
        base = statistics.median(one[place] for one in theirs)
        remark = f"straight into the broker {base:.1f} ms"
        values = [one[place] for one in ours]
        yield Figure(f"{name} from send to callback", values, "ms", at_most=most, remark=remark)


def _broker(bench: Bench, options: argparse.Namespace) -> Target:
    return bench.kafka("real", brokers=1, partitions=options.partitions)


@contextmanager
def _door(bench: Bench, kafka: Target) -> Iterator[Bruce]:
    with bench.bruce(kafka.bootstrap, inputs=[{"kafka": free_port()}]) as bruce:
        bruce.start()
        yield bruce


def _address(bruce: Bruce) -> str:
    return f"127.0.0.1:{bruce.inputs[0]['kafka']}"


def _cpu_of(bruce: Bruce) -> float:
    workers = bruce.workers()
    return sum(cpu_seconds(workers[role]) for role in ("kafka", "ingest"))


def _cpu_of_clients() -> float:
    """CPU of programs that have ended, in seconds."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def _from_c(bench: Bench, options: argparse.Namespace) -> Client:
    def run(servers: str, count: int) -> float:
        program = compile_c("produce_librdkafka", bench.programs)
        command = [program, librdkafka_path(), servers, TOPIC, options.partitions, count]
        said = json.loads(_output([*map(str, command), str(options.bytes - KEY_BYTES), "0"]))
        if said["failed"]:
            raise Skipped(f"the C program had {said['failed']} failed messages")
        return float(0.9 * count / said["seconds"])

    return run


def _from_java(options: argparse.Namespace, *properties: str) -> Client:
    def run(servers: str, count: int) -> float:
        try:
            jars = _JARS.fetch()
        except JarsMissing as error:
            raise Skipped(str(error)) from None
        tool = ["java", "-cp", f"{jars}/*", "org.apache.kafka.tools.ProducerPerformance", "--topic", TOPIC]
        size = ["--num-records", str(count), "--record-size", str(options.bytes), "--throughput", "-1"]
        said = _output([*tool, *size, "--command-property", f"bootstrap.servers={servers}", *properties])
        # The last line is of the whole run.
        return float(_RATE.findall(said)[-1])

    return run


def _output(command: list[str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_S).stdout


def _latency(servers: str, options: argparse.Namespace, seconds: float) -> list[float]:
    """[p50, p99] in ms."""
    producer = Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0, "log_level": 2}
    )
    times: list[float] = []

    def note(since: float) -> Callable[[KafkaError | None, Message], None]:
        return lambda _error, _message: times.append(time.perf_counter() - since)

    producer.produce(TOPIC, b"first")
    producer.flush(TIMEOUT_S)
    begun, count = time.perf_counter(), max(2, int(LATENCY_RATE * seconds))
    for number in range(count):
        while (left := begun + number / LATENCY_RATE - time.perf_counter()) > 0:
            producer.poll(left)
        producer.produce(TOPIC, bytes(options.bytes), on_delivery=note(time.perf_counter()))
    if producer.flush(TIMEOUT_S):
        raise Skipped("not every message of the latency's was acknowledged")
    return [float(1e3 * value) for value in np.percentile(times, (50, 99))]
