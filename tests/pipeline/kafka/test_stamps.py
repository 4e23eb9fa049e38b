"""`format("bruce-stamps")`: pieces of Kafka, each with the offsets that it has read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from dispatch.embedded import EmbeddedKafka
from dispatch.record_consumer import RecordConsumer
from pipeline.kafka.ranges import Range
from pipeline.kafka.stamps import (
    LEAST_OFFSETS,
    TASK_OFFSETS,
    Piece,
    StampSource,
    StampStream,
    Task,
    advance,
    pieces_of,
    read_piece,
    share,
    to_offsets,
    to_positions,
)

SPOOL = bytes(range(16))
PATIENCE_S = 30.0
Pairs = list[tuple[str, str | bytes | None]]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker, and topics `t` and `u` of two partitions, with 100 records in each partition of `t`."""
    with EmbeddedKafka(brokers=1, topics=[("t", 2), ("u", 2)]) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers, "linger.ms": 5})
        for one in range(200):
            # Each fifth is another program's.
            headers: Pairs = [("bruce-id", SPOOL + one.to_bytes(8, "big"))] if one // 2 % 5 else []
            producer.produce("t", b"%d" % one, None, one % 2, timestamp=1 + one, headers=headers)
        assert producer.flush(PATIENCE_S) == 0
        yield running


def properties(kafka: EmbeddedKafka) -> dict[str, str]:
    """The properties of a consumer."""
    return {"bootstrap.servers": kafka.bootstrap_servers}


def piece(kafka: EmbeddedKafka, *ranges: Range, silence_s: float = PATIENCE_S) -> Piece:
    """The result of one task."""
    with closing(RecordConsumer(properties(kafka))) as consumer:
        batch = read_piece(consumer, ranges, silence_s)
    (found,) = pieces_of(pa.Table.from_batches([batch]))
    return found


def test_a_piece_has_its_ranges_and_no_more(kafka: EmbeddedKafka) -> None:
    """Records outside of the ranges, and those of others, are not in it; offsets of others count as read."""
    ranges = [Range("t", 0, 3, 11), Range("t", 1, 90, 100), Range("u", 0, 0, 0)]
    found = piece(kafka, *ranges)
    assert found.ranges == ranges
    wanted = [*range(6, 22, 2), *range(181, 200, 2)]
    assert sorted(found.sequences.tolist()) == [one for one in wanted if one // 2 % 5]
    assert found.sent_ms.tolist() == (1 + found.sequences).tolist()
    assert {uuid.tobytes() for uuid in found.spools} == {SPOOL}
    with closing(RecordConsumer(properties(kafka))) as consumer:
        consumer.assign({("t", 0): 3})
        whole = consumer.consume(PATIENCE_S)
    contents = dict(zip(whole.sequence.tolist(), whole.content.tolist(), strict=True))
    even = found.sequences % 2 == 0
    assert found.contents[even].tolist() == [contents[one] for one in found.sequences[even].tolist()]


def test_silence_ends_a_piece(kafka: EmbeddedKafka) -> None:
    """It has what came, and says how far it was read."""
    found = piece(kafka, Range("t", 0, 95, 1000), Range("u", 1, 0, 5), silence_s=1.0)
    assert found.ranges == [Range("t", 0, 95, 100), Range("u", 1, 0, 0)]
    assert found.sequences.tolist() == [one for one in range(190, 200, 2) if one // 2 % 5]


def test_a_piece_without_records(kafka: EmbeddedKafka) -> None:
    """Its columns are empty."""
    found = piece(kafka, Range("t", 0, 0, 1))
    assert (found.ranges, len(found.spools), len(found.sequences)) == ([Range("t", 0, 0, 1)], 0, 0)


def test_a_stream_goes_to_the_ends(kafka: EmbeddedKafka) -> None:
    """Batch by batch, from where it began; where nothing came it stays."""
    begin = {("t", 0): 40, ("t", 1): 0, ("u", 0): 0}
    stream = StampStream(properties(kafka), "", begin, 50, 1)
    start, reached = stream.initialOffset(), []
    assert to_positions(start) == begin
    while True:
        end = stream.latestOffset()
        if end == start:
            break
        tasks = stream.partitions(start, end)
        reached += [one for task in tasks for one in task.ranges]
        start = end
    assert to_positions(start) == {("t", 0): 100, ("t", 1): 100, ("u", 0): 0}
    assert sum(one.end - one.start for one in reached) == 160
    assert all(one.end - one.start <= 50 for one in reached)


def test_kafka_being_away_ends_no_stream() -> None:
    """The next batch is then where the last one was."""
    stream = StampStream({"bootstrap.servers": "127.0.0.1:1"}, "", {("t", 0): 7}, 50, 1)
    assert stream.latestOffset() == stream.initialOffset() == {"t": {"0": 7}}


def test_offsets_are_json() -> None:
    """Of topics with dots, and back."""
    positions = {("a.b", 10): 5, ("a.b", 2): 1 << 40, ("c", 0): 0}
    assert to_offsets(positions) == {"a.b": {"2": 1 << 40, "10": 5}, "c": {"0": 0}}
    assert to_positions(to_offsets(positions)) == positions


def test_a_batch_takes_partitions_in_turn() -> None:
    """Each gives what it has, up to a task's; those that had no turn are first in the next batch."""
    start = {("t", one): 0 for one in range(3)}
    ends = {("t", 0): 3 * TASK_OFFSETS, ("t", 1): 10, ("t", 2): 3 * TASK_OFFSETS}
    most = TASK_OFFSETS + 100
    first, turn = advance(start, ends, most, 0)
    assert list(first.values()) == [TASK_OFFSETS, 10, 90]
    second, turn = advance(first, ends, most, turn)
    assert list(second.values()) == [TASK_OFFSETS + 100, 10, 90 + TASK_OFFSETS]
    third, _ = advance(second, {}, most, turn)
    assert third == second
    whole, turn = advance(start, ends, TASK_OFFSETS, 0)
    assert (list(whole.values()), turn) == ([TASK_OFFSETS, 0, 0], 1)


def test_an_end_before_the_start_moves_nothing() -> None:
    """Of a topic that was made again: its positions are the witness's to set."""
    assert advance({("t", 0): 9}, {("t", 0): 3}, 100, 0) == ({("t", 0): 9}, 0)


def test_tasks_share_a_batch() -> None:
    """All offsets once, in order; few make one task, more as many as wanted, and none has too much."""
    small = [Range("t", one, 0, 100) for one in range(10)]
    assert share(small, 4) == [small]
    middle = [Range("t", 0, 5, 5 + 4 * LEAST_OFFSETS)]
    assert [len(one) for one in share(middle, 4)] == [1] * 4
    large = [Range("t", 0, 7, 7 + 4 * TASK_OFFSETS), Range("t", 1, 0, 3)]
    shared = share(large, 2)
    assert len(shared) == 5
    assert all(sum(one.end - one.start for one in some) <= TASK_OFFSETS for some in shared)
    flat = [one for some in shared for one in some]
    assert [one.start for one in flat] == [7, *(one.end for one in flat[:3]), 0]
    assert (flat[3].end, flat[4]) == (7 + 4 * TASK_OFFSETS, large[1])
    assert share([], 2) == []


def test_options_are_ours_or_librdkafkas(kafka: EmbeddedKafka) -> None:
    """The prefix goes before a topic's name is hashed."""

    def contents(prefix: str) -> list[int]:
        options = {**properties(kafka), "startingOffsets": '{"t": {"0": 0}}', "prefix": prefix, "tasks": "2"}
        source = StampSource(options)
        stream = source.streamReader(source.schema())
        (task,) = stream.partitions(stream.initialOffset(), {"t": {"0": 9}})
        assert isinstance(task, Task)
        (found,) = pieces_of(pa.Table.from_batches(list(stream.read(task))))
        return np.asarray(found.contents).tolist()

    assert len(contents("")) == len(contents("t")) > 0
    assert not set(contents("")) & set(contents("t"))
