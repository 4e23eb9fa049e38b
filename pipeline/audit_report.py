"""The findings of an audit, and their JSON.

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
     "unread": [text, ...]}              segments that the disk cannot read, and the error

COUNT: stored, once, duplicated, discarded, backlog, withheld, expired, lost, altered, reordered,
misplaced, foreign, unreadable, as `pipeline.audit` defines them. `unreadable` of a spool: messages that the
headers of the segments count, and that are in no good frame that could be read; null for an audit of some
topics only. Those of them that Kafka has are `unreadable` of their topic.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from pipeline.audit import COUNTS, UNREADABLE
from pipeline.kafka.records import CONNECTOR, OURS
from pipeline.source.plan import SpoolPlan
from pipeline.source.remote import shown
from spool.storage.disk import name_file
from spool.words import agreeing, counted

VERSION = 1

_SAID = ("duplicated", "discarded", "backlog", "withheld", "expired", "misplaced")
_EXPLAINED = {
    "discarded": "the daemon gave them up, and said why: see `brucectl discards`",
    "withheld": "in Kafka, behind a transaction that is open; who reads what is committed gets them later",
    "expired": "the marks say that they were delivered, and Kafka has dropped records of their age since",
    "misplaced": "in another partition than their topic's partitioner chooses: order by key may be lost",
    "foreign": "records of other producers, or of messages whose segments are gone",
    UNREADABLE: "damage or the disk hides them in the spool; those in Kafka are told by their headers",
}


@dataclass(frozen=True, slots=True)
class SpoolReport:
    """One spool that was read."""

    spool: str
    directory: str
    stored: int
    unreadable: int | None
    damaged: Sequence[str] = ()
    """Segments whose headers are damaged; their messages are unreadable, as far as they can be counted."""


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of one audit."""

    spools: list[SpoolReport]
    topics: Mapping[str, Mapping[str, int]]
    """By name, in order: each of the COUNTS."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """By topic, offsets that Kafka had and has no more: lost messages may have been there."""

    by: tuple[str, ...] = ()
    """Dimensions of `groups`, beside the topic."""
    groups: Sequence[Mapping[str, Any]] = ()
    """The COUNTS of each group, in order; a dimension that is not known is None."""
    read_by: str = OURS
    """By which of Spark's formats Kafka was read (pipeline.kafka.reader)."""
    unread: Sequence[str] = ()
    """Segments that the disk cannot read, and the error."""

    @property
    def total(self) -> dict[str, int]:
        """The COUNTS over all topics."""
        return {name: sum(counts[name] for counts in self.topics.values()) for name in COUNTS}

    @property
    def sound(self) -> bool:
        """Nothing is lost, altered or unreadable, no header is damaged, and the disk read everything."""
        total = self.total
        bad = any(spool.unreadable or spool.damaged for spool in self.spools)
        # Of some topics alone it is not known how many of theirs a spool does not give.
        bad |= any(spool.unreadable is None for spool in self.spools) and total[UNREADABLE] > 0
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
        buffer, file = io.BytesIO(), Path(path)
        parquet.write_table(pa.Table.from_pylist(list(map(dict, self.groups)), pa.schema(columns)), buffer)
        try:
            # pyarrow would remove whatever has this name when it fails, a device, too.
            file.write_bytes(buffer.getbuffer())
        except OSError as error:
            name_file(error, file)
            raise

    @property
    def unreadable(self) -> int:
        """Messages that the spools have and do not give, those that are in Kafka included."""
        return max(self.total[UNREADABLE], sum(spool.unreadable or 0 for spool in self.spools))

    def rows(self) -> list[tuple[str, int]]:
        """Messages by outcome, each of them in one row; the last row is their sum."""
        total, known = self.total, self.total[UNREADABLE]
        rows = [
            ("in Kafka once", total["once"]),
            ("in Kafka more than once", total["duplicated"]),
            ("discarded, with a reason", total["discarded"]),
            ("backlog, not delivered yet", total["backlog"]),
            ("in Kafka, behind a transaction that is open", total["withheld"]),
            ("delivered, and dropped by Kafka since", total["expired"]),
            ("lost", total["lost"]),
            ("unreadable in the spool, in Kafka", known),
            ("unreadable in the spool, not in Kafka", self.unreadable - known),
        ]
        return [*rows, ("stored in all", sum(count for _, count in rows))]

    def explanations(self) -> list[str]:
        """A line for each count that is neither delivered nor lost, if it is not zero."""
        total = {**self.total, UNREADABLE: self.unreadable}
        return [f"{name}: {text}" for name, text in _EXPLAINED.items() if total[name]]

    def sentence(self) -> str:
        """The outcome, for people."""
        total = self.total
        delivered = total["once"] + total["duplicated"] + total[UNREADABLE]
        stored = total["stored"] + self.unreadable
        found = f"{delivered:,} of {agreeing(stored, 'stored message')} in Kafka"
        bad = [f"{total[name]:,} {name}" for name in ("lost", "altered") if total[name]]
        if self.unreadable:
            there = f" ({total[UNREADABLE]:,} of them in Kafka)" if total[UNREADABLE] else ""
            bad.append(f"{self.unreadable:,} unreadable in the spool{there}")
        bad += [f"the header of {path} is damaged" for spool in self.spools for path in spool.damaged]
        bad += [f"the disk gives an error for {place}" for place in self.unread]
        said = [f"{total[name]:,} {name}" for name in _SAID if total[name]]
        verdict = ", ".join(bad) if bad else "nothing is missing"
        gone = sum(self.dropped.values()) if total["lost"] else 0
        hint = f" Kafka itself has dropped {counted(gone, 'record')} of these topics since." if gone else ""
        reader = " Kafka was read by Spark's own connector." if self.read_by == CONNECTOR else ""
        return f"{found}: {verdict}{' (' + ', '.join(said) + ')' if said else ''}.{hint}{reader}"


def make_report(
    plans: Sequence[SpoolPlan],
    rows: Sequence[Mapping[str, Any]],
    dropped: Mapping[str, int],
    by: Sequence[str],
    *,
    whole: bool,
) -> Report:
    """The report of these plans, from rows of `pipeline.audit.summarise`; `whole`: of all of their topics."""
    readable: Counter[str] = Counter()
    topics: dict[str, Counter[str]] = {}
    for row in sorted(rows, key=itemgetter("topic")):
        readable[row["spool"]] += row["stored"]
        topics.setdefault(row["topic"], Counter()).update({name: row[name] for name in COUNTS})
    spools = [
        SpoolReport(
            plan.spool,
            shown(plan.directory),
            _messages(plan) if whole else readable[plan.spool],
            _messages(plan) - readable[plan.spool] if whole else None,
            plan.unreadable,
        )
        for plan in plans
    ]
    return Report(spools, topics, dropped, tuple(by), _groups(rows, by))


def _messages(plan: SpoolPlan) -> int:
    """How many a spool stores, by its headers and footers."""
    return plan.stored + sum(one.messages for one in plan.damaged)


def _groups(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> list[dict[str, Any]]:
    """The counts by topic and `by`, in order, over all spools; those without a value come first."""
    groups: dict[tuple[Any, ...], Counter[str]] = {}
    for row in rows:
        key = (row["topic"], *(row[name] for name in by))
        groups.setdefault(key, Counter()).update({name: row[name] for name in COUNTS})
    ordered = sorted(groups, key=lambda key: [(value is not None, value or 0) for value in key])
    return [dict(zip(("topic", *by), key, strict=True)) | groups[key] for key in ordered]
