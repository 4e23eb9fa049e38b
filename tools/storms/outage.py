"""The outage: Kafka away from the start, everything killed and started again, and then Kafka comes.

In the second form Kafka runs, but one broker freezes with messages on their way to it; everything is killed;
the frozen broker dies, so that its leaders move; and only then bruce starts again.

In the third the network is cut with messages on their way: packets are dropped, and no side is notified. No
worker may end meanwhile, however long it lasts; status must name the cause, and delivery go on by itself.
"""

from __future__ import annotations

import time
from typing import Any

from tools.load_process import run_load
from tools.storms.evidence import Evidence
from tools.storms.options import StormOptions
from tools.storms.run import StormRun, storm_run
from tools.storms.watcher import Watcher
from tools.waiting import wait_until

WATCH_S = 1.0
FREEZE_BEFORE_S = 2.0
FROZEN_BROKER = 1


def run_outage(options: StormOptions, evidence: Evidence, *, move_leaders: bool) -> dict[str, Any]:
    """An outage from beginning to end; its summary."""
    with storm_run(options, evidence) as parts:
        watcher = Watcher(parts.bruce, evidence, WATCH_S)
        try:
            away = _network_is_cut if options.cut_s else _kafka_is_away
            report = (_leaders_move if move_leaders else away)(parts, watcher)
        finally:
            watcher.stop()
        evidence.say(f"{report['sent']} sent; waiting for the backlog")
        begun = time.monotonic()
        status = parts.settle(watcher)
        seconds = time.monotonic() - begun
        if move_leaders:
            parts.target.start(FROZEN_BROKER)
        parts.bruce.stop()
        return {**parts.judge(report, status), "statuses": watcher.taken, "drained_s": round(seconds, 1)}


def _kafka_is_away(parts: StormRun, watcher: Watcher) -> dict[str, Any]:
    parts.target.stop_all()
    parts.evidence.say("all brokers are down; bruce starts")
    parts.bruce.start()
    watcher.start()
    report = run_load(parts.load(count=parts.options.messages), parts.options.settle_s)
    _await_received(parts, watcher, report["sent"])
    _expect_nothing_delivered(parts, watcher)
    parts.evidence.say(f"{report['sent']} accepted; killing every process, and starting again")
    parts.kill_all()
    parts.bruce.start()
    _expect_nothing_delivered(parts, watcher)
    parts.evidence.say("Kafka comes")
    parts.target.start_all()
    return report


def _network_is_cut(parts: StormRun, watcher: Watcher) -> dict[str, Any]:
    """Cut all brokers off in the middle of the load, for the time of the options."""
    options, evidence = parts.options, parts.evidence
    parts.bruce.start()
    watcher.start()
    first = run_load(parts.load(count=options.messages // 2), options.settle_s)
    wait_until(lambda: watcher.last["delivered"] > 0, options.settle_s, "the first to be delivered")
    workers = parts.bruce.workers()
    evidence.say(f"every broker is cut off for {options.cut_s:.0f} s")
    parts.target.cut_all()
    end = time.monotonic() + options.cut_s
    second = run_load(parts.load(count=options.messages // 2, first_sender=options.senders), options.settle_s)
    report = {"senders": first["senders"] + second["senders"], "sent": first["sent"] + second["sent"]}
    _await_received(parts, watcher, report["sent"])
    said: set[str] = set()
    while time.monotonic() < end:
        status = watcher.look() or {}
        said.add(str(status.get("trouble")))
        evidence.expect(parts.bruce.workers() == workers, "a worker ended", {"now": parts.bruce.workers()})
        time.sleep(WATCH_S)
    evidence.record("said", {"sentences": sorted(said)})
    evidence.expect(watcher.last["trouble"], "at the end of the outage status does not say what is wrong")
    evidence.expect(watcher.last["backlog"] > 0, "nothing is left to deliver: that was no outage")
    evidence.say(f"mended; status said {sorted(said)}")
    parts.target.mend_all()
    return report


def _leaders_move(parts: StormRun, watcher: Watcher) -> dict[str, Any]:
    """Freeze a broker under load, kill bruce, let the broker's leaders move, start bruce."""
    parts.bruce.start()
    watcher.start()
    half = parts.options.messages // 2
    first = run_load(parts.load(count=half), parts.options.settle_s)
    parts.evidence.say(f"broker {FROZEN_BROKER} freezes")
    parts.target.freeze(FROZEN_BROKER)
    time.sleep(FREEZE_BEFORE_S)
    second = run_load(parts.load(count=half, first_sender=parts.options.senders), parts.options.settle_s)
    report = {"senders": first["senders"] + second["senders"], "sent": first["sent"] + second["sent"]}
    _await_received(parts, watcher, report["sent"])
    parts.evidence.say("killing every process; the frozen broker dies, and its leaders move")
    parts.kill_all()
    parts.target.lose(FROZEN_BROKER)
    parts.bruce.start()
    return report


def _await_received(parts: StormRun, watcher: Watcher, sent: int) -> None:
    wait_until(
        lambda: watcher.last["received"] >= sent,
        parts.options.settle_s,
        f"{sent} messages to be received; the last status: {watcher.last}",
        pause_s=0.2,
    )


def _expect_nothing_delivered(parts: StormRun, watcher: Watcher) -> None:
    status = watcher.look()
    parts.evidence.expect(
        status and status["delivered"] == 0 and status["backlog"] == status["received"],
        "something counts as delivered although no broker is up",
        {"status": status},
    )
