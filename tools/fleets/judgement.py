"""The fleet's records in Kafka, read by a plain consumer, compared with the stored messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tools.fleets.records import Recorded, unexplained
from tools.verify_judge import Findings, Records, judge

FIRST_SENDER = 1000
"""Senders from this number on send to the live daemon; those below it are the hosts."""
Sequences = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Verdict:
    """The findings, and those of them that are faults."""

    findings: Findings
    lost: int
    """Messages that are not in Kafka, and were not damaged."""
    risen: int
    """Messages in Kafka whose frame was damaged: no process could have read them."""
    doubled: int
    """Messages that Kafka has more than once."""
    duplicates_unexplained: int
    """Of these, those that no kill explains."""
    examples: dict[str, Any]


def give_verdict(
    records: Records,
    dropped: int,
    sent: Mapping[int, int],
    damaged: Mapping[int, Sequences],
    spools: Sequence[Path],
    kills: Sequence[Mapping[Path, Recorded]],
) -> Verdict:
    """Judge. `sent` and `damaged` by sender; `spools` by host, the first one's daemon runs."""
    findings = judge(records, sent, dropped=dropped)
    lost = risen = twice = strange = 0
    examples: dict[str, Any] = {}
    for sender, count in sorted(sent.items()):
        mine = records[(records["sender"] == sender) & (records["corrupt"] == 0)]
        times = np.bincount(mine["id"][mine["id"] < count], minlength=count)
        missing = np.flatnonzero(times == 0)
        gone = damaged.get(sender, np.empty(0, np.int64))
        here, there = np.setdiff1d(missing, gone), np.setdiff1d(gone, missing)
        lost, risen = lost + len(here), risen + len(there)
        if len(here) or len(there):
            examples[f"sender {sender}"] = {"lost": here[:10].tolist(), "risen": there[:10].tolist()}
        spool = spools[sender] if sender < FIRST_SENDER else spools[0]
        sequences, copies = np.unique(mine["sequence"], return_counts=True)
        doubled = copies > 1
        bad = unexplained(kills, spool, sequences[doubled], copies[doubled] - 1)
        twice, strange = twice + int(doubled.sum()), strange + len(bad)
        if len(bad):
            examples[f"doubled {sender}"] = bad[:10].tolist()
    return Verdict(findings, lost, risen, twice, strange, examples)
