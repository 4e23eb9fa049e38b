"""The conditions that one attack must meet. Pure functions: tests plant the faults to find."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from tools.adversaries.consumer import SEEN
from tools.adversaries.samples import Peak
from tools.verify_consume import RECORD
from tools.verify_judge import judge

LATENCY_RATIO, LATENCY_FLOOR_MS, STALL_MS = 2.0, 100.0, 1_000.0
"""An honest p99 may be twice that of the control, and this much more: in a quiet control it is 20 to 60 ms,
and one slow sync is as long. The same of the latest message."""
PARTS = 5
"""Of a phase, of equal length: the median of their p99 counts. A machine whose disk or processors pause once
for a quarter of a second has a p99 as long, in a phase of some seconds."""
MEMORY_MIB, DESCRIPTORS = 160.0, 4_500
"""The limits of a process: beyond the control, and in total."""
SYNC_S, START_S = 2.0, 5.0
"""Beyond twice the value of the control, and of the first start."""
UNSENT = 0.1
"""The share of due messages that honest senders may have failed to send, beyond that of the control."""
NS = 1_000_000


@dataclass
class Phase:
    """One phase: the sent and the due messages of each honest sender, by number; and the peaks."""

    sent: dict[int, int] = field(default_factory=dict)
    due: dict[int, int] = field(default_factory=dict)
    peak: Peak = field(default_factory=Peak)

    @property
    def unsent(self) -> float:
        """The share of due messages that the worst-off sender could not send."""
        return max((1 - self.sent[sender] / due for sender, due in self.due.items() if due), default=0.0)


@dataclass
class Observed:
    """All observations of an attack, for the judgement."""

    control: Phase
    attack: Phase
    seen: np.ndarray
    """SEEN rows: all records of the honest topics, and of those that must stay empty."""
    forbidden: tuple[int, ...] = ()
    """Numbers of topics into which no attacker may write."""
    timed: bool = True
    """Whether latency is judged: not when processes were killed."""
    first: Phase = field(default_factory=Phase)
    """Messages before the control, which show that everything runs."""
    deliverers_killed: int = 0
    ended_ns: int = 1 << 62
    """The time of the final kill of everything: duplicates after it are allowed."""
    first_start_s: float = 0.0
    start_s: float = 0.0
    adds_up: bool = True
    restarts: int = 0
    """Restarts of workers, beyond the kills."""
    may_lose: int = 0
    """Messages that were in a queue without a holder."""
    trouble: list[str] = field(default_factory=list)
    """Faults that the attack itself found."""


@dataclass
class Verdict:
    """The row of an attack in the table."""

    lost: int = 0
    doubled: int = 0
    forged: int = 0
    out_of_order: int = 0
    latency: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """By phase: p50, p99 and max in ms."""
    broken: list[str] = field(default_factory=list)


def first_arrivals(seen: np.ndarray, sent: Collection[int]) -> np.ndarray:
    """SEEN rows: the first arrival of each message of these senders."""
    rows = seen[np.isin(seen["sender"], list(sent)) & (seen["corrupt"] == 0)]
    rows = rows[np.lexsort((rows["at_ns"], rows["id"], rows["sender"]))]
    first = np.ones(len(rows), bool)
    first[1:] = (rows["id"][1:] != rows["id"][:-1]) | (rows["sender"][1:] != rows["sender"][:-1])
    return rows[first]


def latency(seen: np.ndarray, sent: Collection[int]) -> tuple[float, float, float]:
    """(p50, p99, max) in ms of the first arrivals of these senders' messages; zeros without any."""
    rows = first_arrivals(seen, sent)
    if not len(rows):
        return 0.0, 0.0, 0.0
    late = (rows["at_ns"] - rows["sent_ns"]) / NS
    return float(np.quantile(late, 0.5)), float(np.quantile(late, 0.99)), float(late.max())


def steady_latency(seen: np.ndarray, sender: int) -> tuple[float, float]:
    """(median over PARTS of the p99, max) in ms of a sender's messages; zeros without any."""
    rows = first_arrivals(seen, [sender])
    if not len(rows):
        return 0.0, 0.0
    late = (rows["at_ns"] - rows["sent_ns"]) / NS
    edges = np.linspace(rows["sent_ns"].min(), rows["sent_ns"].max(), PARTS + 1)[1:-1]
    part = np.searchsorted(edges, rows["sent_ns"], "right")
    each = [np.quantile(late[part == number], 0.99) for number in np.unique(part)]
    return float(np.median(each)), float(late.max())


def decide(found: Observed, *, counts_only: bool = False) -> Verdict:
    """Judge the observations. `counts_only`: neither latency nor memory nor time."""
    verdict = Verdict()
    _judge_messages(found, verdict)
    for text in found.trouble:
        verdict.broken.append(text)
    _expect(verdict, found.adds_up, "received is not delivered + discarded + backlog")
    _expect(verdict, found.restarts <= 0, f"{found.restarts} workers ended by themselves")
    if not counts_only:
        _judge_bounds(found, verdict)
    return verdict


def _expect(verdict: Verdict, holds: object, text: str) -> None:
    if not holds:
        verdict.broken.append(text)


def _judge_messages(found: Observed, verdict: Verdict) -> None:
    planted = np.isin(found.seen["topic"], found.forbidden)
    rows = found.seen[~planted]
    records = np.zeros(len(rows), RECORD)
    for name in RECORD.names or ():
        records[name] = rows[name]
    sent = {**found.first.sent, **found.control.sent, **found.attack.sent}
    findings = judge(records, sent)
    verdict.lost = findings.missing
    verdict.forged = int(planted.sum()) + findings.unknown + findings.corrupt
    verdict.doubled = findings.received_twice
    if not found.deliverers_killed:
        early = judge(records[rows["at_ns"] < found.ended_ns], sent)
        verdict.doubled = max(verdict.doubled, early.duplicates)
    verdict.out_of_order = findings.out_of_order
    _expect(verdict, verdict.lost <= found.may_lose, f"{verdict.lost} honest messages did not arrive")
    _expect(verdict, not verdict.forged, f"{verdict.forged} messages are in Kafka that were never sent so")
    _expect(verdict, not verdict.doubled, f"{verdict.doubled} messages came twice")
    _expect(verdict, not verdict.out_of_order, f"{verdict.out_of_order} messages came out of order")
    verdict.latency = {
        "control": latency(rows, found.control.sent),
        "attack": latency(rows, found.attack.sent),
    }


def _judge_bounds(found: Observed, verdict: Verdict) -> None:
    before, now = found.control.peak, found.attack.peak
    if found.timed:
        _judge_latencies(found, verdict)
        most = found.control.unsent + UNSENT
        text = f"{100 * found.attack.unsent:.0f} % of what the honest had to send was not taken"
        _expect(verdict, found.attack.unsent <= most, text)
        most = 2 * before.sync_s + SYNC_S
        _expect(verdict, now.sync_s <= most, f"nothing was synced for {now.sync_s:.1f} s")
    most = 2 * found.first_start_s + START_S
    _expect(verdict, found.start_s <= most, f"the start behind it took {found.start_s:.1f} s")
    for name, mib in now.pss_mib.items():
        most = before.pss_mib.get(name, 0.0) + MEMORY_MIB
        _expect(verdict, mib <= most, f"{name} had {mib:.0f} MiB, bound {most:.0f}")
    for name, count in now.descriptors.items():
        _expect(verdict, count <= DESCRIPTORS, f"{name} had {count} descriptors, bound {DESCRIPTORS}")


def _judge_latencies(found: Observed, verdict: Verdict) -> None:
    """Each honest sender against the one at the same door in the control: none may pay for the others."""
    for before, now in zip(sorted(found.control.sent), sorted(found.attack.sent), strict=False):
        (usual, usual_max), (late, latest) = (steady_latency(found.seen, sender) for sender in (before, now))
        text = f"the honest p99 of sender {now} is {late:.0f} ms, and {usual:.0f} ms without the attack"
        _expect(verdict, late <= LATENCY_RATIO * usual + LATENCY_FLOOR_MS, text)
        text = f"a message of sender {now} came {latest:.0f} ms late, {usual_max:.0f} ms without the attack"
        _expect(verdict, latest <= LATENCY_RATIO * usual_max + STALL_MS, text)


def no_rows() -> np.ndarray:
    """An empty table."""
    return np.zeros(0, SEEN)
