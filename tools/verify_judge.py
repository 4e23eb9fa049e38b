"""The verifier's findings in the messages that Kafka has: lost, doubled, altered, out of order.

Pure functions on RECORD columns (verify_consume). The order that bruce promises is that of first
appearances: of one sender's messages with one partition key, in one topic, the ids rise, whatever
duplicates come after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tools.payload import NO_KEY
from tools.verify_consume import NO_SEQUENCE

Records = npt.NDArray[np.void]
EXAMPLES = 5


@dataclass(slots=True)
class Findings:
    """The counts, and a few examples of each kind of violation."""

    messages: int = 0
    expected: int = 0
    missing: int = 0
    """Ids that a sender sent and Kafka does not have."""
    unknown: int = 0
    """Ids that no sender says it sent."""
    duplicates: int = 0
    """Messages beyond the first of each id."""
    received_twice: int = 0
    """Ids that came under more than one sequence number: doubled at intake, not on the way to Kafka."""
    corrupt: int = 0
    out_of_order: int = 0
    """First appearances with a lower id than the one before, of one sender, topic and partition key."""
    scattered: int = 0
    """Partition keys of a topic found in more than one partition."""
    split: int = 0
    """Batches whose messages do not have sequence numbers side by side: they were not taken as one."""
    dropped: int = 0
    """Messages that Kafka itself no longer kept: then nothing is proven."""
    senders: list[dict[str, int]] = field(default_factory=list)
    examples: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """No violation. Duplicates are none: they are counted, and bounded by who knows the kills."""
        return not any(
            (
                self.missing,
                self.unknown,
                self.received_twice,
                self.corrupt,
                self.out_of_order,
                self.scattered,
                self.split,
                self.dropped,
            )
        )

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "clean": self.clean}


def judge(records: Records, sent: Mapping[int, int], *, dropped: int = 0) -> Findings:
    """Compare what Kafka has with what each sender sent: {sender: ids from 0}."""
    findings = Findings(messages=len(records), expected=sum(sent.values()), dropped=dropped)
    findings.corrupt = int(records["corrupt"].sum())
    _show(findings, "corrupt", records[records["corrupt"] != 0])
    # A corrupt message names no sender.
    records = records[records["corrupt"] == 0]
    _count_ids(findings, records, sent)
    _count_receptions(findings, records)
    _check_batches(findings, records)
    _check_order(findings, records[records["key"] != NO_KEY])
    return findings


def _count_ids(findings: Findings, records: Records, sent: Mapping[int, int]) -> None:
    for sender, count in sorted(sent.items()):
        ids = records["id"][records["sender"] == sender]
        known = ids[ids < count]
        times = np.bincount(known, minlength=count)
        missing = np.flatnonzero(times == 0)
        row = {
            "sender": sender,
            "sent": count,
            "missing": len(missing),
            "duplicates": len(known) - (count - len(missing)),
            "unknown": len(ids) - len(known),
        }
        findings.senders.append(row)
        findings.missing += row["missing"]
        findings.duplicates += row["duplicates"]
        findings.unknown += row["unknown"]
        _add(findings, "missing", [[sender, int(i)] for i in missing[:EXAMPLES]])
    strangers = records[~np.isin(records["sender"], list(sent))]
    findings.unknown += len(strangers)
    _show(findings, "unknown", strangers)


def _count_receptions(findings: Findings, records: Records) -> None:
    """Find ids with more than one sequence number."""
    records = records[records["sequence"] != NO_SEQUENCE]
    ordered = records[np.lexsort((records["sequence"], records["id"], records["sender"]))]
    before, after = ordered[:-1], ordered[1:]
    same = (before["sender"] == after["sender"]) & (before["id"] == after["id"])
    twice = np.flatnonzero(same & (before["sequence"] != after["sequence"]))
    findings.received_twice = len(twice)
    for at in twice[:EXAMPLES]:
        _show(findings, "received_twice", ordered[at : at + 2])


def _check_batches(findings: Findings, records: Records) -> None:
    """Find batches whose first message has not the same number in each of them."""
    records = records[(records["batch"] > 0) & (records["sequence"] != NO_SEQUENCE)]
    size = records["batch"].astype(np.int64) + 1
    groups = np.stack([records["sender"], records["id"] // size], axis=1)
    first = records["sequence"] - records["id"] % size
    order = np.lexsort((first, groups[:, 1], groups[:, 0]))
    groups, first = groups[order], first[order]
    same = (groups[1:] == groups[:-1]).all(axis=1)
    wrong = order[1:][same & (first[1:] != first[:-1])]
    findings.split = len(np.unique(np.stack([records["sender"], records["id"] // size])[:, wrong], axis=1).T)
    _show(findings, "split", records[wrong])


def _check_order(findings: Findings, records: Records) -> None:
    """Find keys in several partitions, and first appearances that came too late."""
    places = np.unique(records[["topic", "key", "partition"]])
    _, counts = np.unique(places[["topic", "key"]], return_counts=True)
    findings.scattered = int((counts > 1).sum())
    ordered = _first_appearances(records)
    before, after = ordered[:-1], ordered[1:]
    same = np.ones(len(after), bool)
    for column in ("topic", "key", "sender", "partition"):
        same &= before[column] == after[column]
    wrong = np.flatnonzero(same & (after["id"] < before["id"]))
    findings.out_of_order = len(wrong)
    for at in wrong[:EXAMPLES]:
        _show(findings, "out_of_order", ordered[at : at + 2])


def _first_appearances(records: Records) -> Records:
    """The first of each (topic, partition, sender, id), by topic, key, sender, partition and offset."""
    order = np.lexsort([records[c] for c in ("offset", "id", "partition", "sender", "key", "topic")])
    by_id = records[order]
    first = np.ones(len(by_id), bool)
    same = np.ones(max(0, len(by_id) - 1), bool)
    for column in ("topic", "key", "sender", "partition", "id"):
        same &= by_id[column][:-1] == by_id[column][1:]
    first[1:] = ~same
    kept = by_id[first]
    return kept[np.lexsort([kept[c] for c in ("offset", "partition", "sender", "key", "topic")])]


def _show(findings: Findings, kind: str, records: Records) -> None:
    names = records.dtype.names or ()
    _add(findings, kind, [dict(zip(names, row.tolist(), strict=True)) for row in records[:EXAMPLES]])


def _add(findings: Findings, kind: str, examples: list[Any]) -> None:
    if examples:
        findings.examples[kind] = (findings.examples.get(kind, []) + examples)[: 2 * EXAMPLES]
