"""Everything that is known of one message.

    {"version": 1, "sequence": 17, "spool": "0cd6...",
     "segment": {"path": "...", "number": 1, "packed": false, "sealed": true},
     "frame": {"offset": 4096, "burst": 3, "messages": 17, "xxh3": "0f...", "salvaged": false},
     "place": 2, "committed": true, "fate": "discarded", "reason": "message_too_large",
     "received": "...", "topic": "orders", ... as `brucectl inspect records --json` has it,
     "datagram_bytes": 120, "partition": {"number": 3, "of": 12, "reason": "murmur2 of its key, modulo 12"},
     "kafka": [{"partition": 3, "offset": 4711, "timestamp": 1772362800000}]}

`fate`: waiting, delivered, discarded, dead_lettered, unknown. `reason` is null but for the discarded.
`committed` is null where no index says it. `kafka` is null unless Kafka was searched.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cli.config.config import Config
from cli.inspect.records import NOBODY, as_object
from cli.terminal.output import printable, topic_name
from router.partition import Choice, explain
from spool.format.frame import POSITION
from spool.format.segment_format import SALVAGED
from spool.format.wire import DEAD_LETTERED, reason_name
from spool.index.committed import read_committed
from spool.index.environment import LMDB_REFUSES
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.marks import Marks
from spool.marks.outcomes import DELIVERED, OPEN, UNTOLD, outcomes_now
from spool.read.files import Located
from spool.words import clipped, counted, reason_in_words

if TYPE_CHECKING:
    from dispatch.consumer import RecordPosition

VERSION = 1
_WIDTH = 16
"""Bytes on a line of the dump."""
_ASCII = bytes(byte if byte in range(0x20, 0x7F) else ord(".") for byte in range(256))
_OUTCOMES = {
    "waiting": "not yet: it waits for its turn, or for Kafka",
    "delivered": "yes: Kafka has acknowledged it",
    "discarded": "no: it was discarded, {reason}",
    "dead_lettered": "to the dead-letter topic: {reason}",
    "unknown": "not known: the marks are not there, or do not say",
}
_COMMITTED = {
    True: "yes, and synced",
    False: "no: a power loss could still take it",
    None: "no index says so",
}


@dataclass(frozen=True, slots=True)
class Message:
    """A message, its place in the log, and its outcome."""

    found: Located
    committed: bool | None
    outcome: int | None
    """As spool.marks.marks has it; None: there are no marks to ask."""
    choice: Choice
    records: list[RecordPosition] | None = None
    """Its records in Kafka; None: Kafka was not searched."""

    @property
    def spool(self) -> bytes:
        return bytes(self.found.header["spool"])

    @property
    def sequence(self) -> int:
        return int(self.found.batch.sequence[self.found.row])

    @property
    def stamp(self) -> bytes:
        """The header `bruce-id` of its record."""
        return self.spool + self.sequence.to_bytes(8, "big")

    @property
    def earliest_ms(self) -> int:
        """No record of it is older: its sender's time, or its reception where the broker sets the time."""
        batch, row = self.found.batch, self.found.row
        return max(0, min(int(batch.timestamp[row]), int(batch.received_ns[row]) // 1_000_000))


def describe(found: Located, layout: Layout | None, config: Config) -> Message:
    """All that the spool knows; of a segment file by itself (`layout` None) that is its frame.

    Raises BadPartitioner.
    """
    batch, row = found.batch, found.row
    outcomes = None if layout is None else outcomes_now(layout, batch.sequence[row : row + 1])
    topic = batch.topics.names[int(batch.topic[row])]
    return Message(
        found,
        _is_committed(found, layout),
        None if outcomes is None else int(outcomes[0]),
        explain(batch, row, config.partitioners, _history(layout, topic), config.dispatch.partitioner),
    )


def _is_committed(found: Located, layout: Layout | None) -> bool | None:
    """Whether it is synced, as far as anybody says: what is sealed is."""
    if found.sealed:
        return True
    known = layout and read_committed(layout.index)
    if not known:
        return None
    number, tail = known
    return (int(found.header["number"]), found.offset) < (number, int(tail[POSITION]))


def _history(layout: Layout | None, topic: bytes) -> list[tuple[int, int]]:
    """How many partitions the topic had, and from which message on."""
    if layout is None:
        return []
    try:
        marks = Marks(layout.delivery, SegmentList(layout), readonly=True)
    except LMDB_REFUSES:
        return []
    try:
        return marks.partitions().get(topic, [])
    except LMDB_REFUSES:
        return []
    finally:
        marks.close()


def outcome_name(outcome: int | None) -> tuple[str, str | None]:
    """(what became of it, the reason of a discard)."""
    if outcome is None or outcome == UNTOLD:
        return "unknown", None
    if outcome == OPEN:
        return "waiting", None
    if outcome == DELIVERED:
        return "delivered", None
    return "dead_lettered" if outcome & DEAD_LETTERED else "discarded", reason_name(outcome)


def to_json(message: Message, *, values: bool) -> dict[str, Any]:
    """The document above."""
    found, choice = message.found, message.choice
    outcome, reason = outcome_name(message.outcome)
    records = message.records
    return {
        "version": VERSION,
        "spool": str(uuid.UUID(bytes=message.spool)),
        "segment": {
            "path": str(found.path),
            "number": int(found.header["number"]),
            "packed": found.packed,
            "sealed": found.sealed,
        },
        "frame": {
            "offset": found.offset,
            "burst": int(found.head["burst"]),
            "messages": int(found.head["count"]),
            "xxh3": f"{int(found.head['digest']):016x}",
            "salvaged": bool(int(found.head["flags"]) & SALVAGED),
        },
        "place": found.row,
        "committed": message.committed,
        "fate": outcome,
        "reason": reason,
        **as_object(found.batch, found.row, values=values),
        "datagram_bytes": int(found.batch.datagram_bytes[found.row]),
        "partition": {"number": choice.partition, "of": choice.partitions, "reason": choice.reason},
        "kafka": None
        if records is None
        else [
            {"partition": at.partition, "offset": at.offset, "timestamp": at.timestamp_ms} for at in records
        ],
    }


def page(message: Message, *, values: bool) -> Iterator[str]:
    """Lines of text."""
    found = message.found
    batch, row, head = found.batch, found.row, found.head
    outcome, reason = outcome_name(message.outcome)
    facts = {
        "message": f"{message.sequence} of spool {uuid.UUID(bytes=message.spool)}",
        "received": _received(message),
        "segment": f"{found.path}, number {found.header['number']}{', compressed' if found.packed else ''}",
        "frame": f"at byte {found.offset:,}, message {row + 1} of {head['count']}, "
        f"xxh3 {int(head['digest']):016x}, verified",
        "committed": _COMMITTED[message.committed],
        "delivered": _OUTCOMES[outcome].format(reason=reason and reason_in_words(reason)),
        "topic": topic_name(batch.topics.names[int(batch.topic[row])]),
        "partition": _partition(message),
        **_kafka(message),
        "timestamp": f"{batch.timestamp[row]} ms, {_time(int(batch.timestamp[row]) / 1e3)}, by its sender",
        "key": _bytes(batch.key(row)),
        "value": _bytes(batch.value(row)),
    }
    width = max(map(len, facts))
    yield from (f"{name:<{width}}  {text}" for name, text in facts.items())
    for name, data in batch.headers(row):
        text = clipped(printable(data)) if data and values else _bytes(data)
        yield f"{'header':<{width}}  {printable(name)}: {text}"
    if values:
        for name, data in (("key", batch.key(row)), ("value", batch.value(row))):
            if data:
                yield from ("", name, *hex_lines(data))


def _received(message: Message) -> str:
    batch, row = message.found.batch, message.found.row
    uid, pid = int(batch.uid[row]), int(batch.pid[row])
    sender = "a sender the kernel did not name" if NOBODY in (uid, pid) else f"uid {uid}, pid {pid}"
    return f"{_time(int(batch.received_ns[row]) / 1e9)}, from {sender}"


def _partition(message: Message) -> str:
    choice = message.choice
    return choice.reason if choice.partition is None else f"{choice.partition}: {choice.reason}"


def _kafka(message: Message) -> dict[str, str]:
    if message.records is None:
        return {}
    places = [f"partition {at.partition}, offset {at.offset}" for at in message.records]
    return {"in Kafka": "; ".join(places) or "no record with its id, from its own time on"}


def _bytes(data: bytes | None) -> str:
    """How long it is, in words."""
    if data is None:
        return "null"
    return counted(len(data), "byte") if data else "empty"


def _time(seconds: float) -> str:
    try:
        return (
            f"{datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
        )
    except (OverflowError, ValueError, OSError):
        return "no time of any calendar"


def hex_lines(data: bytes) -> Iterator[str]:
    """Offset, bytes in hexadecimal, and what of them is printable ASCII."""
    for at in range(0, len(data), _WIDTH):
        part = data[at : at + _WIDTH]
        text = part.translate(_ASCII).decode("ascii")
        yield f"  {at:08x}  {part[:8].hex(' '):<23}  {part[8:].hex(' '):<23}  {text}"
