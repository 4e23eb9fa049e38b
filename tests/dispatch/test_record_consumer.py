"""Records as columns, against the embedded Kafka; transactions are in tests/real_kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import xxhash
from confluent_kafka import Producer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatch.consumer import open_consumer
from dispatch.embedded import EmbeddedKafka
from dispatch.errors import BadProperty, Code, Unreachable
from dispatch.record_consumer import BEGINNING, END, UNTIMED, RecordConsumer, Records
from pipeline.kafka.ranges import Range
from pipeline.kafka.records import read_range, to_arrow
from pipeline.source.fields import to_schema
from tests.dispatch.fixture import PATIENCE_S, await_true, produce_bytes

ROOT = Path(__file__).resolve().parents[2]
SPOOL = bytes(range(16))
QUICK = {
    "fetch.wait.max.ms": "10",
    "fetch.error.backoff.ms": "10",
    "reconnect.backoff.max.ms": "100",
    "topic.metadata.propagation.max.ms": "100",
}
FETCH, TOPIC_AUTHORIZATION_FAILED = 1, 29
Pairs = list[tuple[str, str | bytes | None]]
Row = tuple[bytes | None, bytes | None, int, Pairs]


def sized(size: int) -> st.SearchStrategy[bytes]:
    """Of so many bytes."""
    return st.binary(min_size=size, max_size=size)


BYTES = st.none() | st.binary(max_size=40)
IDS = st.tuples(st.just("bruce-id"), st.none() | st.sampled_from([24, 24, 24, 0, 23, 25]).flatmap(sized))
OTHERS = st.tuples(
    st.sampled_from(["", "a", "bruce-i", "bruce-ids", "bruce-replay", "bruce-replays", "\u00e9"]), BYTES
)
ROWS = st.tuples(BYTES, BYTES, st.integers(1, 2**41), st.lists(IDS | OTHERS, max_size=4))


def stamp(sequence: int) -> tuple[str, bytes]:
    """The header of a message."""
    return "bruce-id", SPOOL + sequence.to_bytes(8, "big")


def produce(
    kafka: EmbeddedKafka, rows: Sequence[Row], topic: str = "t", partition: int = 0, codec: str = "none"
) -> None:
    """Records in this order."""
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0, "compression.type": codec}
    )
    for key, value, sent_ms, headers in rows:
        producer.produce(topic, value, key, partition, timestamp=sent_ms, headers=headers)
    assert producer.flush(PATIENCE_S) == 0


def plain(*sequences: int) -> list[Row]:
    """Messages of the spool."""
    return [(b"k", b"%d" % one, 5, [stamp(one)]) for one in sequences]


def opened(kafka: EmbeddedKafka, prefix: bytes = b"", burst: int = 1000) -> RecordConsumer:
    """A consumer that does not wait for more."""
    return RecordConsumer({"bootstrap.servers": kafka.bootstrap_servers, **QUICK}, prefix, burst=burst)


def read(consumer: RecordConsumer) -> Records:
    """The records up to the ends of all partitions."""
    found: list[Records] = []

    def at_end() -> bool:
        found.append(consumer.consume(0.1))
        return consumer.positions == {one: end for one, (_, end) in consumer.ends(PATIENCE_S).items()}

    await_true(at_end)
    return Records._make(map(np.concatenate, zip(*found, strict=True)))


@pytest.fixture(scope="module")
def one() -> Iterator[EmbeddedKafka]:
    """One broker for all examples."""
    with EmbeddedKafka(brokers=1, topics=[("t", 1)]) as running:
        yield running


@pytest.fixture(scope="module")
def reader(one: EmbeddedKafka) -> Iterator[RecordConsumer]:
    """One consumer, which reads on from example to example."""
    with closing(opened(one, burst=7)) as consumer:
        consumer.assign({("t", 0): 0})
        yield consumer


SPECIAL: list[Row] = [
    (b"", None, 1, [("bruce-id", bytes(24)), ("bruce-id", bytes(24)), ("bruce-id", None)]),
    (None, b"", 2, [("a", b""), ("bruce-replay", b"7"), ("bruce-id", bytes(24)), ("a", None)]),
    (b"k", b"v", 3, [("bruce-id", bytes(25)), ("bruce-id", bytes(24))]),
    (b"k", b"v", 3, [("bruce-id", bytes(23))]),
    (b"k", b"v", 3, [("bruce-id", None)]),
    (b"k", b"v", 3, [("bruce-id", bytes(16) + b"\xff" * 8)]),
    (b"k", b"v", 3, [("bruce-idx", bytes(24)), ("bruce-i", bytes(24))]),
    (None, None, 2**41, []),
]
"""Ids of every kind, and what is nearly one."""


@settings(deadline=None, max_examples=30)
@example(rows=SPECIAL)
@given(rows=st.lists(ROWS, min_size=1, max_size=30))
def test_the_same_as_by_python(one: EmbeddedKafka, reader: RecordConsumer, rows: list[Row]) -> None:
    """Ids, content and times are those that `pipeline.kafka.records` has, in bursts that end anywhere.

    Records without an id are left out, and those whose sequence is none.
    """
    (start,) = reader.positions.values()
    produce(one, rows)
    found = read(reader)
    wanted = Range("t", 0, start, start + len(rows))
    names = ["bruce_spool", "bruce_sequence", "content_hash", "timestamp_ms", "offset"]
    with closing(open_consumer({"bootstrap.servers": one.bootstrap_servers, **QUICK})) as consumer:
        tables = [to_arrow(batch, wanted, to_schema(names)) for batch in read_range(consumer, wanted)]
    expected = [tuple(row.values()) for table in tables for row in table.to_pylist()]
    assert len(expected) == len(rows)
    seen = zip(
        [one.tobytes().hex() for one in found.spool],
        *(column.tolist() for column in (found.sequence, found.content, found.sent_ms, found.offset)),
        strict=True,
    )
    assert list(seen) == [row for row in expected if row[0] is not None and row[1] >= 0]
    assert not found.partition.any()


def test_names_that_are_no_text(kafka: EmbeddedKafka) -> None:
    """Headers of any bytes are hashed as they are."""
    headers = [(b"\xff", b"1"), (b"bruce-id", SPOOL + bytes(8)), (b"h\xc3", b"")]
    produce_bytes(kafka.bootstrap_servers, "t", headers)
    with closing(opened(kafka)) as consumer:
        consumer.assign({("t", 0): 0})
        found = read(consumer)

    def chain(seed: int, *fields: bytes) -> int:
        for field in fields:
            seed = xxhash.xxh64_intdigest(field, seed)
        return seed

    null = (-1).to_bytes(4, "little", signed=True)
    of_headers = chain(42, b"\1\0\0\0", bytes(4), b"\xff", b"1", b"h\xc3", b"")
    content = chain(42, b"t", null, null, of_headers.to_bytes(8, "little"))
    assert found.content.view(np.uint64).tolist() == [content]


def test_positions(kafka: EmbeddedKafka) -> None:
    """They go over foreign records to the ends; a partition that holds none keeps its own."""
    foreign: list[Row] = [(None, b"v", 5, []), (b"k", None, 5, [("x", b"")])]
    produce(kafka, [*foreign, *plain(1), *foreign], partition=0)
    produce(kafka, foreign, partition=1)
    with closing(opened(kafka)) as consumer:
        consumer.assign({("t", 0): 0, ("t", 1): 0, ("t", 4): BEGINNING})
        assert consumer.positions == {("t", 0): 0, ("t", 1): 0, ("t", 4): BEGINNING}
        found = read(consumer)
        assert consumer.positions == {("t", 0): 5, ("t", 1): 2, ("t", 4): 0}
    assert (found.offset.tolist(), found.sequence.tolist()) == ([2], [1])
    assert found.spool.tobytes() == SPOOL


def test_an_assignment_replaces_another(kafka: EmbeddedKafka) -> None:
    """It begins in the middle; nothing comes of the one before, and topics keep their indexes."""
    kafka.topic("a", 2)
    produce(kafka, plain(*range(10)))
    produce(kafka, plain(*range(10, 20)), "a", 1)
    with closing(opened(kafka)) as consumer:
        consumer.assign({("t", 0): 7})
        assert read(consumer).sequence.tolist() == [7, 8, 9]
        consumer.assign({("t", 0): 0})
        assert len(consumer.consume(PATIENCE_S).offset)
        consumer.assign({("a", 1): 4, ("t", 0): 9, ("t", 5): END})
        found = read(consumer)
        assert consumer.topics == ["t", "a"]
    named = zip(found.topic.tolist(), found.partition.tolist(), found.sequence.tolist(), strict=True)
    assert sorted(named) == [(0, 0, 9), *((1, 1, number) for number in range(14, 20))]


def test_a_prefix(kafka: EmbeddedKafka) -> None:
    """Mirrored records have the hash of those in the topic without the prefix, and no others have."""
    for topic in ("east.t", "eastt", "west.t"):
        kafka.topic(topic, 1)
        produce(kafka, plain(1), topic)
    produce(kafka, plain(1))
    with closing(opened(kafka, b"east.")) as consumer:
        consumer.assign({(topic, 0): 0 for topic in ("t", "east.t", "eastt", "west.t")})
        found = read(consumer)
        of = {
            consumer.topics[at]: hashed
            for at, hashed in zip(found.topic, found.content.tolist(), strict=True)
        }
    assert of["east.t"] == of["t"]
    assert len({of[topic] for topic in ("t", "eastt", "west.t")}) == 3


def test_brokers_that_go_and_come_back(kafka: EmbeddedKafka, capfd: pytest.CaptureFixture[str]) -> None:
    """`error` says it while it lasts; then reading goes on where it was, and librdkafka says nothing."""
    produce(kafka, plain(0, 1))
    with closing(opened(kafka)) as consumer:
        consumer.assign({("t", 0): 0})
        assert read(consumer).sequence.tolist() == [0, 1]
        assert consumer.error == ""
        kafka.down()
        await_true(lambda: not len(consumer.consume(0.1).offset) and consumer.error != "")
        assert consumer.error.startswith("no broker can be reached (")
        with pytest.raises(Unreachable, match="Kafka does not tell the ends of partitions: no broker"):
            consumer.ends(0.5)
        with pytest.raises(Unreachable, match="Kafka does not tell its topics: no broker"):
            consumer.topics_known(0.5)
        kafka.up()
        produce(kafka, plain(2))
        await_true(lambda: consumer.consume(0.1).sequence.tolist() == [2])
        assert consumer.error == ""
    assert capfd.readouterr().err == ""


def test_ends_that_come_again(kafka: EmbeddedKafka) -> None:
    """The answer of all brokers clears the error, though no record comes."""
    with closing(opened(kafka)) as consumer:
        consumer.assign({("t", 0): 0})
        read(consumer)
        kafka.down()
        await_true(lambda: not len(consumer.consume(0.1).offset) and consumer.error != "")
        kafka.up()
        time.sleep(0.5)
        consumer.consume(0)
        assert consumer.ends(PATIENCE_S) == {("t", 0): (0, 0)}
        assert consumer.error == ""


def test_an_error_that_does_not_pass(kafka: EmbeddedKafka) -> None:
    """It is raised once for each time that Kafka says so; afterwards reading goes on where it was."""
    produce(kafka, plain(0, 1))
    with closing(opened(kafka)) as consumer:
        consumer.assign({("t", 0): 0})
        read(consumer)
        kafka.errors(FETCH, [TOPIC_AUTHORIZATION_FAILED])
        with pytest.raises(Unreachable, match=r"Kafka gives nothing of t \[0\]: .*authorization") as refused:
            await_true(lambda: consumer.consume(0.1) is None)
        assert refused.value.code == TOPIC_AUTHORIZATION_FAILED
        kafka.clear(FETCH)
        produce(kafka, plain(2))
        assert read(consumer).sequence.tolist() == [2]


def test_records_before_an_error(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the same burst are returned; the next call raises it."""
    produce(kafka, plain(0, 1))
    with closing(opened(kafka)) as consumer:
        consumer.assign({("t", 0): 0})
        receive = consumer._receive

        def receive_both(timeout_s: float) -> Records:
            found = receive(timeout_s)
            consumer._fall_silent(("t", 0), TOPIC_AUTHORIZATION_FAILED, "no right")
            return found

        monkeypatch.setattr(consumer, "_receive", receive_both)
        assert len(consumer.consume(PATIENCE_S).offset)
        with pytest.raises(Unreachable, match=r"Kafka gives nothing of t \[0\]: no right"):
            consumer.consume(PATIENCE_S)


def test_a_topic_that_is_not_there(kafka: EmbeddedKafka) -> None:
    """The others are read all the same; the error is remembered, since it may come."""
    produce(kafka, plain(0))
    with closing(opened(kafka)) as consumer:
        consumer.assign({("t", 0): 0, ("absent", 3): 0})
        found: list[int] = []

        def both() -> bool:
            found.extend(consumer.consume(0.1).sequence.tolist())
            return found == [0] and consumer.positions["t", 0] == 1 and "absent [3]" in consumer.error

        await_true(both)
        assert consumer.positions["absent", 3] == 0
        assert consumer.ends(PATIENCE_S) == {("t", 0): (0, 1)}
        assert "absent [3]" in consumer.error
        kafka.topic("absent", 4)
        produce(kafka, plain(9), "absent", 3)
        await_true(lambda: consumer.consume(0.1).sequence.tolist() == [9])
        assert consumer.error == ""


def test_closing_with_messages_in_hand(kafka: EmbeddedKafka) -> None:
    """An interrupt may leave messages that librdkafka would wait for: they are freed, and it ends at once."""
    produce(kafka, plain(*range(10)))
    consumer = opened(kafka)
    consumer.assign({("t", 0): 0})
    await_true(lambda: consumer._take(0.1) > 0)
    closer = threading.Thread(target=consumer.close, daemon=True)
    closer.start()
    closer.join(PATIENCE_S)
    assert not closer.is_alive()


def test_a_partition_that_has_more_and_gives_nothing(kafka: EmbeddedKafka) -> None:
    """Its broker answers, and sends what cannot be read, say: the error stays until a record comes."""
    produce(kafka, plain(0, 1, 2), "t", 1)
    with closing(opened(kafka)) as consumer:
        consumer.assign({("t", 0): 0, ("t", 1): 0})
        for partition in (0, 1):
            consumer._fall_silent(("t", partition), int(Code.LEADER_NOT_AVAILABLE), "failed CRC32C")
        consumer.ends(PATIENCE_S)
        assert consumer.error == "Kafka gives nothing of t [1]: failed CRC32C"
        assert len(consumer.consume(PATIENCE_S).offset)
        assert consumer.error == ""


def test_topics_and_ends(kafka: EmbeddedKafka) -> None:
    """Without Kafka's own topics, with a user's that begins as they do; of partitions not assigned, too."""
    kafka.topic("__consumer_offsets", 5)
    kafka.topic("__audit", 1)
    kafka.topic("other", 2)
    produce(kafka, plain(0, 1, 2), "other", 1)
    with closing(opened(kafka)) as consumer:
        assert consumer.ends(1) == {}
        assert consumer.topics_known(PATIENCE_S) == {"t": 6, "other": 2, "__audit": 1}
        assert consumer.ends(PATIENCE_S, [("other", 1), ("t", 0)]) == {("other", 1): (0, 3), ("t", 0): (0, 0)}


def test_properties() -> None:
    """Those that librdkafka refuses, and a credential that could not be read."""
    with pytest.raises(BadProperty, match="No such configuration property"):
        RecordConsumer({"nonsense": "1"})
    with pytest.raises(BadProperty, match="librdkafka refuses the"):
        RecordConsumer({"fetch.max.bytes": "1000", "message.max.bytes": "2000"})


PROGRAM = """
import json, resource, sys
from dispatch.record_consumer import RecordConsumer
servers, rounds, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
consumer = RecordConsumer({"bootstrap.servers": servers, "fetch.wait.max.ms": "10"})
peaks = []
for _ in range(rounds):
    consumer.assign({("t", 0): 0})
    rows = []
    while consumer.positions["t", 0] < count:
        found = consumer.consume(1)
        rows += zip(*(column.tolist() for column in found)) if rounds == 1 else []
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
consumer.close()
consumer.close()
print(json.dumps([rows, peaks]))
"""


def run(
    kafka: EmbeddedKafka, rounds: int, count: int, **environ: str
) -> tuple[list[list[object]], list[int]]:
    """Read the first records of partition 0 in a process of its own: (rows, KB of each round)."""
    words = [sys.executable, "-c", PROGRAM, kafka.bootstrap_servers, str(rounds), str(count)]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        timeout=2 * PATIENCE_S,
        check=True,
    )
    assert done.stderr == b""
    rows, peaks = json.loads(done.stdout)
    return rows, peaks


def test_interpreted(kafka: EmbeddedKafka) -> None:
    """The loop gives the same without Numba."""
    pairs: Pairs = [("x", None), ("x", b""), ("bruce-replay", b"1"), ("bruce-id", b"theirs")]
    produce(kafka, [*plain(1, 2), (None, b"", 1, [stamp(3), *pairs]), (b"", None, 2**40, [*pairs, stamp(4)])])
    rows, _ = run(kafka, 1, 4, NUMBA_DISABLE_JIT="1")
    with closing(opened(kafka)) as consumer:
        consumer.assign({("t", 0): 0})
        found = read(consumer)
    assert [row[4] for row in rows] == [1, 2, 3]
    assert rows == [list(row) for row in zip(*(column.tolist() for column in found), strict=True)]
    assert UNTIMED not in found.sent_ms


def test_each_message_is_freed(kafka: EmbeddedKafka) -> None:
    """Records that are read again and again take no more memory; of 100 bytes each it would be 40 MB."""
    count, rounds = 20_000, 20
    foreign: list[Row] = [(b"k", b"v", 5, [])] * (count // 2)
    produce(kafka, [*plain(*range(count // 2)), *foreign], codec="lz4")
    _, peaks = run(kafka, rounds, count)
    assert peaks[-1] - peaks[4] < 15_000
