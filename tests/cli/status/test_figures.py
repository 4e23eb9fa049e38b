"""The utilisation of each stage: each process on the way of a message is one, and the schema lists it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from cli.status.figures import KEPT, STAGES, Look, Order, TopicTotals, cpu_seconds
from cli.status.snapshot import ROLES
from status.report import OTHERS, WorkerView
from tests.cli.status.test_screens import after, report, shown
from tests.status.test_health import HEALTHY

SCHEMA = Path(__file__).resolve().parents[3] / "status/schema.json"


def test_every_process_is_a_stage() -> None:
    """Except the supervisor, which handles no message, and the delivery worker, which is several stages."""
    assert STAGES.keys() == {*ROLES} - {"supervisor", "delivery"}
    flow = json.loads(SCHEMA.read_text())["$defs"]["flow"]["properties"]["stages"]
    pattern = flow["items"]["properties"]["stage"]["pattern"]
    for stage in (*STAGES.values(), "router", "broker-7"):
        assert re.search(pattern, stage)


# Its threads have the names of librdkafka's; each has worked, and rests when it says so.
WORKED = """
import ctypes, os, threading, time

worked = threading.Barrier(5)

def work(name, seconds):
    ctypes.CDLL(None).prctl(15, name)
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    worked.wait()
    threading.Event().wait()

for name, seconds in ((b"rdk:broker7", 0.3), (b"rdk:broker12", 0), (b"rdk:broker-1", 0), (b"rdk:main", 0)):
    threading.Thread(target=work, args=(name, seconds), daemon=True).start()
worked.wait()
print(sum(os.times()[:2]), flush=True)
input()
"""


def test_processor_time() -> None:
    """That of live threads, in seconds; the main thread of the delivery worker is the router."""
    child = [sys.executable, "-c", WORKED]
    with subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        used = float(process.stdout.readline())
        found = cpu_seconds(
            [
                WorkerView("stream", process.pid, 0, alive=True),
                WorkerView("delivery", process.pid, 0, alive=True),
                WorkerView("keeper", 2**22 + 1, 0, alive=False),
            ]
        )
        process.kill()
    assert found.keys() == {"stream", "router", "broker-7", "broker-12"}
    assert abs(found["stream"] - used) < 0.5 + 0.1 * used
    assert 0.2 < found["broker-7"] <= found["stream"]
    assert 0 <= found["router"] <= found["stream"] - found["broker-7"] + 0.1


def look(
    waiting: dict[bytes, int],
    arrived: dict[bytes, int],
    discarded: dict[bytes, int] | None = None,
    *,
    estimated: bool = False,
) -> Look:
    """A look that finds these messages, by topic."""
    report = replace(HEALTHY, topics=tuple(waiting.items()), topics_estimated=estimated)
    return Look(0.0, report, Counter(arrived), Counter(discarded or {}))


def test_messages_by_topic() -> None:
    """From the first look on: what came, and what went less what was discarded; estimates count later."""
    totals = TopicTotals(10)
    totals.add(look({b"a": 5}, {b"a": 100}, {b"a": 7}))
    assert (totals.received, totals.delivered) == ({b"a": 100}, {})
    totals.add(look({b"a": 2, b"b": 3}, {b"a": 10, b"b": 4}, {b"a": 9}))
    assert totals.received == {b"a": 110, b"b": 4}
    assert totals.delivered == {b"a": 11, b"b": 1}
    totals.add(look({b"a": 50}, {b"a": 20}, {b"a": 9}, estimated=True))
    assert (totals.received[b"a"], totals.delivered[b"a"]) == (130, 11)
    totals.add(look({}, {}, {b"a": 9}))
    assert (totals.delivered[b"a"], totals.delivered[b"b"]) == (33, 4)


def test_counts_by_topic_never_fall() -> None:
    """The log is read after the marks: a look may find a message waiting that had seemed to be gone."""
    totals = TopicTotals(10)
    totals.add(look({}, {}))
    for waiting, told in ((0, 4), (1, 4), (0, 4)):
        totals.add(look({b"a": waiting}, {b"a": 4} if not totals.received else {}))
        assert totals.delivered[b"a"] == told


def test_topics_with_a_row() -> None:
    """The first topics keep their rows; all others share one, however many there are."""
    totals = TopicTotals(2)
    totals.add(look({}, {}))
    totals.add(look({}, {b"a": 3, b"b": 2, b"c": 1}))
    totals.add(look({}, {b"c": 100, b"d": 50, b"a": 1}))
    assert totals.received == {b"a": 4, b"b": 2, OTHERS: 151}
    assert totals.delivered == totals.received


def test_rates() -> None:
    """Received and delivered, in all, by topic and by broker: differences by time."""
    arrived = Counter({b"a": 30, b"b": 10})
    top = after(report(100, 50, {b"a": 20, b"b": 30}), report(140, 90, {b"a": 50}, acked=44), arrived=arrived)
    assert top.all.newest == (20, 20)
    assert top.topics[b"a"].newest == (15, 0)
    assert top.topics[b"b"].newest == (5, 20)
    assert top.brokers[1].newest == (0, 22)
    assert 2 not in top.brokers


def test_what_is_not_known_is_not_shown() -> None:
    """For estimated topics, no outgoing rate is shown; a restart of a worker is no rate."""
    first, second = report(9, 9, {b"a": 5}, acked=70), report(9, 9, {b"a": 2}, acked=3, topics_estimated=True)
    top = after(first, second)
    assert top.topics == {}
    assert top.brokers == {}
    assert "~2" in "\n".join(shown(top))


def test_quiet_topics_go() -> None:
    """A topic without traffic for KEPT looks is forgotten."""
    top = after(report(0, 0, {}), report(9, 0, {b"a": 9}), arrived=Counter({b"a": 9}))
    quiet = report(9, 9, {})
    for number in range(KEPT + 3):
        assert (b"a" in top.topics) == (number <= KEPT)
        top.add(Look(10.0 + number, quiet, Counter()))


def test_order() -> None:
    """By rate, by backlog, by name."""
    arrived = Counter({b"a": 1, b"b": 3, b"c": 2})
    top = after(report(0, 0, {}), report(6, 0, {b"a": 30, b"b": 10, b"c": 20}), arrived=arrived)
    orders = {
        Order.RATE: [b"b", b"c", b"a"],
        Order.BACKLOG: [b"a", b"c", b"b"],
        Order.NAME: [b"a", b"b", b"c"],
    }
    for order, names in orders.items():
        top.order = order
        assert top.sorted_topics() == names


def test_what_was_moves_to_the_left() -> None:
    """If a broker gets nothing any more, its last batch stays at its time, and does not become the newest."""
    top = after(report(0, 0, {}), report(9, 9, {}, acked=9))
    columns = []
    for number in range(3):
        (line,) = (line for line in shown(top) if line.startswith("1 healthy"))
        columns.append(line.index("▇"))
        top.add(Look(10.0 + number, report(9, 9, {}, acked=9), Counter()))
    assert columns == [columns[0], columns[0] - 1, columns[0] - 2]
