"""The audit names each fault, and finds none where there is none: on either engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pipeline.source.fields import to_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.engine import DataFrame, Engine

SPOOL, OTHER = "a" * 32, "b" * 32
_STORED = ("spool", "sequence", "topic", "partition_key", "timestamp_ms", "key", "value", "headers")
STORED = to_schema(_STORED).append(pa.field("partition", pa.int32()))
FOUND = to_schema(
    (
        "topic",
        "partition",
        "offset",
        "timestamp_ms",
        "key",
        "value",
        "headers",
        "bruce_spool",
        "bruce_sequence",
    )
)
IDS = to_schema(("spool", "sequence"))


def frame(engine: Engine, rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> DataFrame:
    """A table of these rows, whose headers are pairs."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    at = schema.get_field_index("headers")
    if at >= 0:
        names = ("key", "value")
        columns[at] = [
            None if one is None else [dict(zip(names, pair, strict=True)) for pair in one]
            for one in columns[at]
        ]
    return engine.table(pa.table(list(map(pa.array, columns, schema.types)), schema))


def rows_of(engine: Engine, frame: DataFrame) -> list[SimpleNamespace]:
    """Its rows."""
    return [SimpleNamespace(**row) for row in engine.collect(frame)]


@dataclass(frozen=True)
class Message:
    """One stored message; `number` counts within its case."""

    number: int
    partition_key: int | None = None
    timestamp_ms: int = 1000
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = -1
    """Of its partitioner; negative: any."""


@dataclass(frozen=True)
class Record:
    """One record in Kafka, as it was sent for `of`; `at` is (partition, offset)."""

    of: Message
    at: tuple[int, int]
    topic: str | None = None
    spool: str | None = SPOOL


@dataclass(frozen=True)
class Case:
    """The messages stored, those in Kafka, and the counts that are not zero."""

    stored: list[Message]
    records: list[Record]
    counts: dict[str, int]
    discarded: list[int] = field(default_factory=list)
    backlog: list[int] = field(default_factory=list)
    withheld: list[int] = field(default_factory=list)
    until_ms: int | None = None
    """The age of what Kafka has dropped of the topic, by time; and by the number of a message."""
    until: int | None = None


def keyed(*numbers: int, key: int = 7) -> list[Message]:
    """Messages with one partition key."""
    return [Message(number, partition_key=key) for number in numbers]


M, N = Message(0), Message(1)
H = Message(0, headers=(("a", b"1"), ("b", None), ("a", b"")))
REPLAY, STAMP = ("bruce-replay", b"1700000000000"), ("bruce-id", bytes(24))
K = keyed(0, 1, 2, 3)
SENT_AS = Record(M, (0, 0))
P = Message(0, partition=1)

CASES = {
    "clean": Case([M, N], [Record(M, (0, 0)), Record(N, (1, 0))], {"once": 2}),
    "lost": Case([M, N], [SENT_AS], {"once": 1, "lost": 1}),
    "duplicated": Case([M], [SENT_AS, Record(M, (0, 5)), Record(M, (1, 5))], {"duplicated": 1}),
    "discarded": Case([M, N], [SENT_AS], {"once": 1, "discarded": 1}, discarded=[1]),
    "discarded-and-found": Case([M], [SENT_AS], {"once": 1}, discarded=[0]),
    "backlog": Case([M, N], [SENT_AS], {"once": 1, "backlog": 1}, backlog=[1]),
    "withheld": Case([M, N], [SENT_AS], {"once": 1, "withheld": 1}, withheld=[1]),
    "withheld-and-backlog": Case([M, N], [SENT_AS], {"once": 1, "backlog": 1}, withheld=[1], backlog=[1]),
    "withheld-and-found": Case([M], [SENT_AS], {"once": 1}, withheld=[0]),
    "expired": Case([M, N], [Record(N, (0, 7))], {"once": 1, "expired": 1}, until_ms=1000),
    "expired-by-place": Case([M, N], [Record(N, (0, 7))], {"once": 1, "expired": 1}, until_ms=1, until=1),
    "lost-behind-what-expired": Case(
        K, [Record(K[1], (0, 7))], {"once": 1, "expired": 1, "lost": 2}, until=1
    ),
    "younger-than-what-expired": Case([M], [], {"lost": 1}, until_ms=999),
    "discarded-of-that-age": Case([M], [], {"discarded": 1}, discarded=[0], until_ms=1000),
    "other-value": Case([M], [Record(replace(M, value=b"w"), (0, 0))], {"once": 1, "altered": 1}),
    "other-key": Case([M], [Record(replace(M, key=b"w"), (0, 0))], {"once": 1, "altered": 1}),
    "other-time": Case([M], [Record(replace(M, timestamp_ms=1001), (0, 0))], {"once": 1, "altered": 1}),
    "other-topic": Case([M], [Record(M, (0, 0), topic="elsewhere")], {"once": 1, "altered": 1}),
    "key-and-value-moved": Case(
        [Message(0, key=b"x", value=b"")],
        [Record(Message(0, key=None, value=b"x"), (0, 0))],
        {"once": 1, "altered": 1},
    ),
    "headers": Case([H], [Record(H, (0, 0))], {"once": 1}),
    **{
        f"other-headers-{name}": Case(
            [H], [Record(replace(H, headers=headers), (0, 0))], {"once": 1, "altered": 1}
        )
        for name, headers in {
            "none": (),
            "fewer": H.headers[:2],
            "more": (*H.headers, ("c", b"")),
            "one-more": (("c", b""), *H.headers),
            "order": (H.headers[1], H.headers[0], H.headers[2]),
            "name": (("A", b"1"), *H.headers[1:]),
            "value": (("a", b"2"), *H.headers[1:]),
            "null": (("a", b"1"), ("b", None), ("a", None)),
            "empty": (("a", b"1"), ("b", b""), ("a", b"")),
            "moved": (("a1", b""), *H.headers[1:]),
            "id": (STAMP, *H.headers),
        }.items()
    },
    "value-became-name": Case(
        [replace(M, headers=(("a", None), ("b", b"x")))],
        [Record(replace(M, headers=(("a", b"b"), ("x", None))), (0, 0))],
        {"once": 1, "altered": 1},
    ),
    "key-became-value": Case(
        [Message(0, key=b"x", value=None)],
        [Record(Message(0, key=None, value=b"x"), (0, 0))],
        {"once": 1, "altered": 1},
    ),
    "headers-of-a-replay": Case(
        [H, N],
        [
            Record(replace(H, headers=(REPLAY, *H.headers)), (0, 0)),
            Record(replace(N, headers=(REPLAY,)), (0, 1)),
        ],
        {"once": 2},
    ),
    "header-added": Case([M], [Record(replace(M, headers=(("c", b""),)), (0, 0))], {"once": 1, "altered": 1}),
    "sender's-own-id": Case(
        [replace(M, headers=(STAMP,)), replace(N, headers=(STAMP,))],
        [Record(replace(M, headers=(STAMP,)), (0, 0)), Record(N, (0, 1))],
        {"once": 2, "altered": 1},
    ),
    "null-key": Case(
        [Message(0, key=b""), Message(1, key=None), Message(2, key=None)],
        [
            Record(Message(0, key=b""), (0, 0)),
            Record(Message(1, key=None), (0, 1)),
            Record(Message(2, key=b""), (0, 2)),
        ],
        {"once": 3, "altered": 1},
    ),
    "null-value": Case(
        [Message(0, value=b""), Message(1, value=None), Message(2, value=None)],
        [
            Record(Message(0, value=b""), (0, 0)),
            Record(Message(1, value=None), (0, 1)),
            Record(Message(2, value=b""), (0, 2)),
        ],
        {"once": 3, "altered": 1},
    ),
    "one-copy-altered": Case(
        [M], [SENT_AS, Record(replace(M, value=b"w"), (0, 1))], {"duplicated": 1, "altered": 1}
    ),
    "time-zero-goes-out-as-one": Case(
        [replace(M, timestamp_ms=0)], [Record(replace(M, timestamp_ms=1), (0, 0))], {"once": 1}
    ),
    "broker's-own-time": Case([M], [Record(replace(M, timestamp_ms=None), (0, 0))], {"once": 1}),  # type: ignore[arg-type]
    "in-order": Case(K, [Record(m, (2, 10 * i)) for i, m in enumerate(K)], {"once": 4}),
    "swapped": Case(
        K, [Record(m, (2, i)) for i, m in enumerate([K[0], K[2], K[1], K[3]])], {"once": 4, "reordered": 1}
    ),
    "late": Case(K, [Record(m, (2, i)) for i, m in enumerate([*K[1:], K[0]])], {"once": 4, "reordered": 1}),
    "resent-in-order": Case(
        K, [Record(m, (2, i)) for i, m in enumerate([*K[:3], *K])], {"duplicated": 3, "once": 1}
    ),
    "other-keys-have-no-order": Case(
        [*keyed(0, key=1), *keyed(1, key=2)],
        [Record(keyed(1, key=2)[0], (0, 0)), Record(keyed(0, key=1)[0], (0, 1))],
        {"once": 2},
    ),
    "unkeyed-has-no-order": Case([M, N], [Record(N, (0, 0)), Record(M, (0, 1))], {"once": 2}),
    "foreign": Case(
        [M],
        [
            SENT_AS,
            Record(N, (0, 1), spool=OTHER),
            Record(N, (0, 2), spool=None),
            Record(N, (0, 3), spool=None),
        ],
        {"once": 1, "foreign": 3},
    ),
    "misplaced": Case([P], [Record(P, (0, 0))], {"once": 1, "misplaced": 1}),
    "in-its-partition": Case([P], [Record(P, (1, 0)), Record(P, (1, 5))], {"duplicated": 1}),
    "copy-in-a-partition-before": Case(
        [P], [Record(P, (0, 0)), Record(P, (1, 0))], {"duplicated": 1, "misplaced": 1}
    ),
    "copy-in-a-partition-behind": Case(
        [P], [Record(P, (1, 0)), Record(P, (2, 0))], {"duplicated": 1, "misplaced": 1}
    ),
    "replayed-elsewhere": Case(
        [P], [Record(P, (1, 0)), Record(replace(P, headers=(REPLAY,)), (2, 0))], {"duplicated": 1}
    ),
    "foreign-gone-from-the-spool": Case([], [SENT_AS], {"foreign": 1}),
}
"""By name, which is also the topic."""


@pytest.fixture(scope="module")
def found(working: Engine) -> dict[str, dict[str, int]]:
    """The counts of each case, all from one audit: each has its topic, and a range of sequence numbers."""
    from pipeline.audit import AGES, COUNTS, PLACES, SPOOLS, Dropped, Told, match, summarise

    stored, records, discarded, backlog, withheld = [], [], [], [], []
    ages, places = [], []
    for index, (topic, case) in enumerate(CASES.items()):
        base = 100 * index
        discarded += [(SPOOL, base + number) for number in case.discarded]
        backlog += [(SPOOL, base + number) for number in case.backlog]
        withheld += [(SPOOL, base + number) for number in case.withheld]
        if case.until_ms is not None:
            ages.append((topic, case.until_ms))
        if case.until is not None:
            places.append((topic, SPOOL, base + case.until))
        stored += [
            (
                *(SPOOL, base + m.number, topic, m.partition_key, m.timestamp_ms, m.key, m.value),
                *(list(m.headers), m.partition),
            )
            for m in case.stored
        ]
        for r in case.records:
            stamp = (r.spool, base + r.of.number) if r.spool else (None, None)
            content = r.of.key, r.of.value, list(r.of.headers)
            records.append((r.topic or topic, *r.at, r.of.timestamp_ms, *content, *stamp))
    matched = match(
        frame(working, stored, STORED),
        frame(working, records, FOUND),
        told=Told(*(frame(working, rows, IDS) for rows in (discarded, backlog, withheld))),
        spools=frame(working, [(SPOOL, 0, 0, True)], SPOOLS),
        dropped=Dropped(frame(working, ages, AGES), frame(working, places, PLACES)),
    )
    counts: dict[str, dict[str, int]] = {}
    for row in rows_of(working, summarise(matched)):
        sums = counts.setdefault(row.topic, dict.fromkeys(COUNTS, 0))
        for name in COUNTS:
            sums[name] += getattr(row, name)
    return counts


@pytest.mark.parametrize("name", CASES)
def test_each_fault_is_found_under_its_name(name: str, found: dict[str, dict[str, int]]) -> None:
    """The counts of a case are those that it was made for, and all others are zero."""
    case = CASES[name]
    counts = {count: number for count, number in found[name].items() if number}
    assert counts == {**case.counts, **({"stored": len(case.stored)} if case.stored else {})}


def test_nothing_else_is_found(found: dict[str, dict[str, int]]) -> None:
    """A record under another topic than its message's is no finding of that topic."""
    assert found.keys() == CASES.keys()


def test_without_outcomes(working: Engine) -> None:
    """When the daemon says nothing of a message that is not in Kafka, it is lost, however old.

    A record of a number that the spool's segments hold is of a message that they do not give.
    """
    from pipeline.audit import AGES, PLACES, SPOOLS, Dropped, match

    stored = frame(working, [(SPOOL, 5, "t", None, 1, None, b"v", [], -1)], STORED)
    records = frame(working, [("t", 0, 0, 1, None, b"v", [], SPOOL, number) for number in (4, 8)], FOUND)
    spools = frame(working, [(SPOOL, 4, 8, False)], SPOOLS)
    dropped = Dropped(frame(working, [("t", 9)], AGES), frame(working, [], PLACES))
    found = rows_of(working, match(stored, records, spools=spools, dropped=dropped))
    assert {row.sequence: row.outcome for row in found} == {4: "unreadable", 5: "lost", 8: None}
    matched = rows_of(working, match(stored, frame(working, [], FOUND)))
    assert [(row.sequence, row.spool, row.topic, row.outcome) for row in matched] == [(5, SPOOL, "t", "lost")]


def test_partitions_without_marks(working: Engine) -> None:
    """The partition counts by which messages were routed are not known: none is called misplaced."""
    from pipeline.audit import SPOOLS, match

    stored = frame(working, [(SPOOL, 5, "t", None, 1, None, b"v", [], 1)], STORED)
    records = frame(working, [("t", 0, 0, 1, None, b"v", [], SPOOL, 5)], FOUND)
    for marked in (True, False):
        spools = frame(working, [(SPOOL, 5, 6, marked)], SPOOLS)
        (row,) = rows_of(working, match(stored, records, spools=spools))
        assert (row.outcome, row.misplaced) == ("once", marked)


def test_what_is_alike_is_counted(working: Engine) -> None:
    """Of equal messages the number of records counts as delivered.

    Three alike, one of them discarded, and two records: none is lost. Two alike and five records: both are
    duplicated. A record that no message is like is foreign.
    """
    from pipeline.audit import Told, match, stamp

    topics = ["three", "three", "three", "two", "two", "one"]
    stored = frame(
        working, [(SPOOL, i, topic, None, 1, None, b"v", [], -1) for i, topic in enumerate(topics)], STORED
    )
    found = ["three"] * 2 + ["two"] * 5 + ["other"]
    records = frame(
        working, [(topic, 0, i, 1, None, b"v", None, None, None) for i, topic in enumerate(found)], FOUND
    )
    told = Told(discarded=frame(working, [(SPOOL, 0)], IDS))
    stamped = stamp(stored, records, told=told)
    rows = rows_of(working, match(stored, stamped, told=told))
    outcomes = {row.sequence: row.outcome for row in rows if row.outcome}
    duplicated = "duplicated"
    assert outcomes == {0: "discarded", 1: "once", 2: "once", 3: duplicated, 4: duplicated, 5: "lost"}
    assert [(row.topic, row.copies) for row in rows if not row.outcome] == [("other", 1)]


def test_headers_tell_what_is_alike(working: Engine) -> None:
    """A record is the message that has its headers, but for any `bruce-id` and `bruce-replay`."""
    from pipeline.audit import match, stamp

    own = [[("a", b"")], [("a", None)], [("bruce-id", bytes(24)), ("b", b"1")]]
    stored = frame(working, [(SPOOL, i, "t", None, 1, None, b"v", h, -1) for i, h in enumerate(own)], STORED)
    sent = [own[1], own[0], [("b", b"1")], [("bruce-replay", b"5"), ("b", b"1")], [("b", b"2")], []]
    records = frame(working, [("t", 0, i, 1, None, b"v", h, None, None) for i, h in enumerate(sent)], FOUND)
    rows = rows_of(working, match(stored, stamp(stored, records)))
    assert {row.sequence: (row.outcome, row.altered) for row in rows if row.outcome} == {
        0: ("once", False),
        1: ("once", False),
        2: ("duplicated", False),
    }
    assert sum(row.copies for row in rows if not row.outcome) == 2
    found = {row.offset: row.bruce_sequence for row in rows_of(working, stamp(stored, records))}
    assert found == {0: 1, 1: 0, 2: 2, 3: 2, 4: None, 5: None}


@pytest.mark.spark
def test_who_a_record_is(spark: SparkSession) -> None:
    """`bruce_id` reads our header among others, and is null without one, or with another's.

    The first of its name decides: those behind it are the sender's.
    """
    from pipeline.kafka.reader import bruce_id

    ours = bytes.fromhex(SPOOL) + (2**40 + 5).to_bytes(8, "big")
    forged = ("bruce-id", bytes.fromhex(OTHER) + bytes(8))
    headers = [
        [("other", b"x"), ("bruce-id", ours), forged],
        [("bruce-id", b"short"), forged],
        [("bruce-id", None), forged],
        [],
        None,
    ]
    frame = spark.createDataFrame(
        [(one,) for one in headers], "headers array<struct<key:string,value:binary>>"
    )
    found = [row[0] for row in frame.select(bruce_id("headers")).collect()]
    assert found == [(SPOOL, 2**40 + 5), None, None, None, None]
