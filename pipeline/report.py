"""What an audit found, and the JSON that says it.

    {"version": 1,
     "sound": true                       nothing lost, altered or unreadable, no header damaged, all read
     "spools": [{"spool": uuid, "directory": path, "stored": n, "unreadable": n,
                 "damaged": [path, ...]}],  segments whose headers are damaged
     "topics": [{"topic": name, COUNT: n, ...}],
     "total": {COUNT: n, ...},
     "by": [DIMENSION, ...],             partition, hour, host, as was asked for
     "groups": [{"topic": name, DIMENSION: value, ..., COUNT: n, ...}],
     "dropped": {topic: n},              offsets that Kafka had and has no more, where there are any
     "read_by": format,                  kafka: by Spark's own connector; bruce-kafka: by bruce's source
     "unread": [text, ...]}              segments that the disk gives an error for, and the error

COUNT: stored, once, duplicated, discarded, backlog, lost, altered, reordered, foreign, as `pipeline.audit`
defines them. `unreadable`: stored according to the headers of the segments, and in no good frame
that could be read; null when only some topics were asked for. Of what stands in `unread` segments and was not
read, records in Kafka are foreign.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from pipeline.audit import COUNTS
from pipeline.kafka_reader import CONNECTOR, OURS

VERSION = 1


@dataclass(frozen=True, slots=True)
class SpoolReport:
    """One spool that was read."""

    spool: str
    directory: str
    stored: int
    unreadable: int | None
    damaged: Sequence[str] = ()
    """Segments whose headers are damaged; what is in them is unreadable, as far as it can be counted."""


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of one audit."""

    spools: list[SpoolReport]
    topics: Mapping[str, Mapping[str, int]]
    """By name, in order: each of the COUNTS."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """By topic, offsets that Kafka had and has no more: what is lost may have been there."""

    by: tuple[str, ...] = ()
    """Dimensions of `groups`, beside the topic."""
    groups: Sequence[Mapping[str, Any]] = ()
    """The COUNTS of each group, in order; a dimension that is not known is None."""
    read_by: str = OURS
    """By which of Spark's formats Kafka was read (pipeline.kafka_reader)."""
    unread: Sequence[str] = ()
    """Segments that the disk gives an error for, and the error."""

    @property
    def total(self) -> dict[str, int]:
        """The COUNTS over all topics."""
        return {name: sum(counts[name] for counts in self.topics.values()) for name in COUNTS}

    @property
    def sound(self) -> bool:
        """Nothing is lost, altered or unreadable, no header is damaged, and the disk gave everything."""
        total = self.total
        bad = any(spool.unreadable or spool.damaged for spool in self.spools)
        return not (total["lost"] or total["altered"] or bad or self.unread)

    def as_json(self) -> dict[str, object]:
        """The document above."""
        return {
            "version": VERSION,
            "sound": self.sound,
            "spools": [asdict(spool) for spool in self.spools],
            "topics": [{"topic": topic, **counts} for topic, counts in self.topics.items()],
            "total": self.total,
            "by": list(self.by),
            "groups": list(map(dict, self.groups)),
            "dropped": dict(self.dropped),
            "read_by": self.read_by,
            "unread": list(self.unread),
        }

    def write_parquet(self, path: str) -> None:
        """The groups as a table: topic, the dimensions, the COUNTS. Raises OSError."""
        kinds = {"partition": pa.int32(), **dict.fromkeys(COUNTS, pa.int64())}
        columns = [(name, kinds.get(name, pa.string())) for name in ("topic", *self.by, *COUNTS)]
        parquet.write_table(pa.Table.from_pylist(list(map(dict, self.groups)), pa.schema(columns)), path)

    def sentence(self) -> str:
        """The outcome, for people."""
        total = self.total
        delivered = total["once"] + total["duplicated"]
        found = f"{delivered:,} of {total['stored']:,} stored messages are in Kafka"
        bad = [f"{total[name]:,} {name}" for name in ("lost", "altered") if total[name]]
        if unreadable := sum(spool.unreadable or 0 for spool in self.spools):
            bad.append(f"{unreadable:,} unreadable in the spool")
        bad += [f"the header of {path} is damaged" for spool in self.spools for path in spool.damaged]
        bad += [f"the disk gives an error for {place}" for place in self.unread]
        said = [f"{total[name]:,} {name}" for name in ("duplicated", "discarded", "backlog") if total[name]]
        verdict = ", ".join(bad) if bad else "nothing is missing"
        gone = sum(self.dropped.values()) if total["lost"] else 0
        hint = f" Kafka itself has dropped {gone:,} records of these topics since." if gone else ""
        reader = " Kafka was read by Spark's own connector." if self.read_by == CONNECTOR else ""
        return f"{found}: {verdict}{' (' + ', '.join(said) + ')' if said else ''}.{hint}{reader}"
