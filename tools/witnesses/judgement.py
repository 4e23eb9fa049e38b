"""The right words of the audit, by the counts of planter and mirror; and whether it says these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.witness.report import MOST_RUNS, SPOOL
from spool.format.segment_format import BLOCK
from tools.storms.evidence import Evidence
from tools.witnesses.faults import MOST_SEQUENCE, Contents, split

Sequences = npt.NDArray[np.int64]
Runs = list[list[int]]
SHOWN = 10


@dataclass(frozen=True, slots=True)
class Truth:
    """One spool, in one tier, as it is."""

    judged: int
    missing: Sequences
    duplicated: Sequences
    altered: Sequences
    """Those in blocks of which nothing is missing: of the others the witness has no sums to compare."""
    hidden: int
    """Altered messages in the other blocks."""

    @property
    def altered_blocks(self) -> Runs:
        """The sequences of each block with an altered message."""
        blocks = np.unique(self.altered // BLOCK).tolist()
        return [[block * BLOCK, (block + 1) * BLOCK - 1] for block in blocks]


def truth_of(spool: str, stored: int, discarded: Sequences, tier: Contents) -> Truth:
    """The truth of a spool of `stored` messages in a tier."""
    there, copies = tier.sequences(spool)
    there, copies = there[there < stored], copies[there < stored]
    kept = np.setdiff1d(np.arange(stored), discarded)
    missing = np.setdiff1d(kept, there)
    altered = np.array(sorted(one for one in tier.altered_of(spool) if one < stored), np.int64)
    altered = np.intersect1d(altered, there)
    is_hidden = np.isin(altered // BLOCK, missing // BLOCK)
    return Truth(len(kept), missing, there[copies > 1], altered[~is_hidden], int(is_hidden.sum()))


def records_of(tier: Contents) -> int:
    """The records of a tier that name a message."""
    return sum(count for stamp, count in tier.copies.items() if split(stamp)[1] < MOST_SEQUENCE)


def runs_of(sequences: Sequences) -> Runs:
    """[first, last] of the first runs, as many as the audit names."""
    if not len(sequences):
        return []
    ends = np.flatnonzero(np.diff(sequences) != 1)
    firsts = sequences[[0, *(ends + 1).tolist()]]
    lasts = sequences[[*ends.tolist(), len(sequences) - 1]]
    return np.column_stack([firsts, lasts])[:MOST_RUNS].tolist()


class Judge:
    """Compares an audit with the truths, by (tier, spool); `names` are those of spools, for people."""

    def __init__(
        self, evidence: Evidence, truths: Mapping[tuple[str, str], Truth], names: Mapping[str, str]
    ) -> None:
        self._evidence, self._truths, self._names = evidence, truths, names

    def judge(self, audit: Mapping[str, Any], records: Mapping[str, int], whole: Iterable[str]) -> None:
        """All of it. `records` by tier; `whole`: the spools all of whose segments are still there."""
        self._expect(not audit["sound"], "it calls sound what is not", audit["sound"], [])
        self._expect(audit["exit"] == 1, "its exit code", audit["exit"], 1)
        named = [tier["tier"] for tier in audit["tiers"]]
        self._expect(named == list(records), "its tiers", named, list(records))
        for tier in audit["tiers"]:
            name = tier["tier"]
            self._same(f"records of {name}", tier["records"], records[name])
            self._same(f"offsets skipped in {name}", tier["skipped"], 0)
            rows = {row["spool"]: row for row in tier["spools"]}
            wanted = {spool for place, spool in self._truths if place == name}
            self._same(f"spools in {name}", sorted(rows), sorted(wanted))
            for spool in wanted & rows.keys():
                self._judge_row(name, rows[spool], self._truths[name, spool], is_whole=spool in set(whole))
        self._judge_between(audit["between"], list(records))

    def _judge_row(self, tier: str, row: Mapping[str, Any], truth: Truth, *, is_whole: bool) -> None:
        where = f"{self._names[row['spool']]} in {tier}"
        self._same(f"judged of {where}", row["judged"], truth.judged)
        self._same(f"late of {where}", row["late"], 0)
        for what, sequences in (("missing", truth.missing), ("duplicated", truth.duplicated)):
            self._same(f"{what} of {where}", row[what], len(sequences))
            self._same(f"{what} sequences of {where}", row[f"{what}_runs"], runs_of(sequences))
        self._same(f"altered blocks of {where}", row["altered_blocks"], truth.altered_blocks)
        self._same(f"uncompared blocks of {where}", row["uncompared_blocks"], [])
        # Message by message, where the spool has them all; else as far as it has them.
        unread = [first // BLOCK for first, _ in row["unread_blocks"]]
        if is_whole:
            self._same(f"blocks of {where} that were not read again", unread, [])
        told = truth.altered[~np.isin(truth.altered // BLOCK, unread)]
        self._same(f"altered messages of {where}", row["altered"], told.tolist())

    def _judge_between(self, between: Sequence[Mapping[str, Any]], tiers: Sequence[str]) -> None:
        wanted = {}
        for spool in self._names:
            before, lacking = SPOOL, np.empty(0, np.int64)
            for tier in tiers:
                missing = self._truths[tier, spool].missing
                if len(gone := np.setdiff1d(missing, lacking)):
                    wanted[spool, before, tier] = len(gone), runs_of(gone)
                before, lacking = tier, missing
        found = {(one["spool"], one["from"], one["to"]): (one["missing"], one["runs"]) for one in between}
        self._same("the places between which messages went missing", found, wanted)

    def _same(self, what: str, found: object, wanted: object) -> None:
        self._expect(found == wanted, what, found, wanted)

    def _expect(self, holds: object, what: str, found: object, wanted: object) -> None:
        self._evidence.expect(
            holds,
            f"the audit is wrong about {what}: {shorten(found)}, and not {shorten(wanted)}",
            {"found": str(found), "wanted": str(wanted)},
        )


def shorten(one: object) -> str:
    """The beginning of what is long."""
    if isinstance(one, list) and len(one) > SHOWN:
        return f"{one[:SHOWN]} and {len(one) - SHOWN} more"
    return str(one)[:500]
