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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.records import as_object
from router.choice import Choice, explain
from spool.catalogue import Catalogue
from spool.environment import LMDB_REFUSES
from spool.fates import DELIVERED, OPEN, UNTOLD, fates_now
from spool.format import SALVAGED
from spool.frame import POSITION
from spool.index import read_committed
from spool.layout import Layout
from spool.locate import Located
from spool.marks import Marks
from spool.wire import DEAD_LETTERED, reason_name

if TYPE_CHECKING:
    from dispatch.search import Place

VERSION = 1


@dataclass(frozen=True, slots=True)
class Message:
    """A message, where it lies and what became of it."""

    found: Located
    committed: bool | None
    fate: int | None
    """As spool.fates has it; None: there are no marks to ask."""
    choice: Choice
    records: list[Place] | None = None
    """Where it is in Kafka; None: nobody looked."""

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


def describe(found: Located, layout: Layout | None, partitioners: Mapping[str, str]) -> Message:
    """All that the spool knows; of a segment file by itself (`layout` None) that is its frame.

    Raises BadPartitioner.
    """
    batch, row = found.batch, found.row
    fates = None if layout is None else fates_now(layout, batch.sequence[row : row + 1])
    topic = batch.topics.names[int(batch.topic[row])]
    return Message(
        found,
        _is_committed(found, layout),
        None if fates is None else int(fates[0]),
        explain(batch, row, partitioners, _history(layout, topic)),
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
        marks = Marks(layout.delivery, Catalogue(layout), readonly=True)
    except LMDB_REFUSES:
        return []
    try:
        return marks.partitions().get(topic, [])
    except LMDB_REFUSES:
        return []
    finally:
        marks.close()


def fate_name(fate: int | None) -> tuple[str, str | None]:
    """(what became of it, the reason of a discard)."""
    if fate is None or fate == UNTOLD:
        return "unknown", None
    if fate == OPEN:
        return "waiting", None
    if fate == DELIVERED:
        return "delivered", None
    return "dead_lettered" if fate & DEAD_LETTERED else "discarded", reason_name(fate)


def to_json(message: Message, *, values: bool) -> dict[str, Any]:
    """The document above."""
    found, choice = message.found, message.choice
    fate, reason = fate_name(message.fate)
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
        "fate": fate,
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
