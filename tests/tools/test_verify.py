"""The verifier finds what it is there to find, and nothing where nothing is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from confluent_kafka import Producer

from dispatch.embedded import EmbeddedKafka
from tools.payload import HEAD, NO_KEY, PLACED, PLACES, TOMBSTONE, WITH_HEADERS, blank_value, headers_of
from tools.verify import Unreadable, verify
from tools.verify_consume import RECORD
from tools.verify_judge import Findings, judge


def records(*rows: tuple) -> np.ndarray:
    """RECORD rows of (id, key, partition), in the order of their partition; sequence is the id."""
    found = np.zeros(len(rows), RECORD)
    for offset, (number, key, partition) in enumerate(rows):
        found[offset] = (0, key, number, number, offset, 0, partition, 0, 0)
    return found


def test_all_there_is_clean() -> None:
    """Duplicates of what was there before do not disturb the order, and are counted."""
    rows = records((0, 1, 0), (1, 1, 0), (2, 1, 0), (1, 1, 0), (2, 1, 0), (3, NO_KEY, 1))
    found = judge(rows, {0: 4})
    assert found.clean
    assert (found.messages, found.expected, found.duplicates) == (6, 4, 2)


@pytest.mark.parametrize(
    ("rows", "sent", "kind"),
    [
        (records((0, 1, 0), (2, 1, 0)), 3, "missing"),
        (records((0, 1, 0)), 3, "missing"),
        (records((0, 1, 0), (1, 1, 0), (2, 1, 0)), 2, "unknown"),
        (records((1, 1, 0), (0, 1, 0)), 2, "out_of_order"),
        (records((0, 1, 0), (2, 1, 0), (0, 1, 0), (1, 1, 0)), 3, "out_of_order"),
        (records((0, 1, 0), (1, 1, 2)), 2, "scattered"),
    ],
)
def test_each_violation_has_its_own_count(rows: np.ndarray, sent: int, kind: str) -> None:
    """One thing wrong is found under one name."""
    found = judge(rows, {0: sent})
    assert not found.clean
    wrong = {k: v for k, v in found.as_dict().items() if k in KINDS and v}
    assert set(wrong) == {kind}


KINDS = {"missing", "unknown", "received_twice", "corrupt", "out_of_order", "scattered", "split", "dropped"}


def test_a_message_received_twice_is_no_duplicate_of_delivery() -> None:
    """The same id under two sequence numbers was doubled at intake."""
    rows = records((0, 1, 0), (0, 1, 0))
    rows["sequence"] = (7, 8)
    found = judge(rows, {0: 1})
    assert (found.received_twice, found.duplicates, found.clean) == (1, 1, False)


def test_a_batch_that_was_taken_in_parts_is_split() -> None:
    """Its messages have sequence numbers side by side, in any order of records; else it counts once."""
    rows = records(*((number, NO_KEY, number % 2) for number in (3, 0, 1, 2, 5, 4, 6, 7)))
    rows["batch"], rows["sequence"] = 3, rows["id"] + 40
    assert judge(rows, {0: 8}).clean
    rows["sequence"][rows["id"] >= 5] += 1
    found = judge(rows, {0: 8})
    assert (found.split, found.clean) == (1, False)


def test_messages_without_a_key_may_come_in_any_order() -> None:
    """AnyPartition promises no order and no partition."""
    assert judge(records((1, NO_KEY, 0), (0, NO_KEY, 1)), {0: 2}).clean


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker with topics to write to."""
    with EmbeddedKafka(brokers=1, topics=[("good", 4), ("bad", 1), ("empty", 2), ("kinds", 2)]) as cluster:
        yield cluster


def message(number: int, key: int = NO_KEY) -> tuple[bytes, int, bytes]:
    """(value, timestamp, key) as tools/load makes them."""
    value = bytearray(blank_value(100))
    head = np.array([(3, 0, 0, key, number, 1_700_000_000_123_000_000 + number)], HEAD)
    value[: HEAD.itemsize] = head.tobytes()
    value[-8:] = number.to_bytes(8, "little")
    own = number if key == NO_KEY else key
    return bytes(value), 1_700_000_000_123, own.to_bytes(8, "little", signed=True)


def produce(cluster: EmbeddedKafka, topic: str, messages: list[tuple]) -> None:
    """Write (partition, value, timestamp, key) as they are."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number, (partition, value, timestamp, key) in enumerate(messages):
        header = bytes(16) + number.to_bytes(8, "big")
        producer.produce(topic, value, key, partition, timestamp=timestamp, headers=[("bruce-id", header)])
    assert producer.flush(20) == 0


def test_whole_topics_are_read(kafka: EmbeddedKafka) -> None:
    """Every partition to its end, an empty topic too, by more readers than one."""
    produce(kafka, "good", [(i % 4, *message(i, key=i % 4 - 2)) for i in range(1000)])
    found = verify(kafka.bootstrap_servers, ["good", "empty"], {3: 1001}, processes=2)
    assert found.missing == 1
    assert found.examples["missing"] == [[3, 1000]]
    assert found.as_dict() | {"missing": 0} == Findings(
        messages=1000,
        expected=1001,
        senders=[{"sender": 3, "sent": 1001, "missing": 1, "duplicates": 0, "unknown": 0}],
        examples=found.examples,
    ).as_dict() | {"clean": False}


def test_what_was_altered_on_the_way_is_found(kafka: EmbeddedKafka) -> None:
    """A changed byte, a shorter value, another time, another key."""
    value, timestamp, key = message(1)
    produce(
        kafka,
        "bad",
        [
            (0, value, timestamp, key),
            (0, value[:50] + b"x" + value[51:], timestamp, key),
            (0, value[:-1], timestamp, key),
            (0, b"", timestamp, key),
            (0, value, timestamp + 1, key),
            (0, value, timestamp, b"otherkey"),
        ],
    )
    assert verify(kafka.bootstrap_servers, ["bad"], {3: 2}).corrupt == 5


def with_traits(traits: int, key: int) -> tuple[bytes, int, list[tuple[str, bytes | None]]]:
    """(value, timestamp, the sender's headers) as tools/load makes them."""
    value = bytearray(message(1, key)[0])
    value[2] = traits
    return bytes(value), 1_700_000_000_123, headers_of(traits, bytes(value[-8:]), bytes(value))


def test_headers_null_values_and_places_are_checked(kafka: EmbeddedKafka) -> None:
    """The headers behind ours, a null value whose bytes are in a header, and the partition that it names."""
    value, timestamp, headers = with_traits(WITH_HEADERS | PLACED, PLACES + 1)
    nothing, _, gone = with_traits(WITH_HEADERS | TOMBSTONE, NO_KEY)
    ours = ("bruce-id", bytes(24))
    good = [(1, value, [ours, *headers]), (0, None, [ours, *gone])]
    wrong = [
        (0, value, [ours, *headers]),
        (1, value, [ours, *headers[::-1]]),
        (1, value, [ours, headers[0]]),
        (1, value, [*headers, ours]),
        (1, value, [ours, *headers, ours]),
        (0, nothing, [ours, *gone]),
        (0, None, [ours, *gone[:-1]]),
        (0, None, [ours, *gone[1:]]),
    ]
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for partition, content, sent in good + wrong:
        producer.produce("kinds", content, None, partition, timestamp=timestamp, headers=sent)
    assert producer.flush(20) == 0
    assert verify(kafka.bootstrap_servers, ["kinds"], {3: 2}).corrupt == len(wrong)


def test_a_topic_that_is_not_there_is_an_error(kafka: EmbeddedKafka) -> None:
    """Reading nothing proves nothing."""
    with pytest.raises(Unreadable, match="nowhere"):
        verify(kafka.bootstrap_servers, ["nowhere"], {0: 1})
