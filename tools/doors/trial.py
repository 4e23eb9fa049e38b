"""One client's records through one kind of trouble, and the judgement: all there, once, in order, as sent."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Message

from spool.shared.state import Field
from tests.daemon import consume
from tools.benches.filesystem import mounted
from tools.bruce_process import Bruce
from tools.doors.clients import Program
from tools.targets import Target
from tools.waiting import TookTooLong, wait_until

TOPIC, PARTITIONS, FIRST = "orders", 3, 1000
KILLS, GAP_S = 5, 0.5
AWAY_S = 8.0
"""For Kafka, or its answers."""
LOAD = 12_000, 2_000
"""Records, and how many of them a second."""
FILLING = {"full": (40_000, 4_000), "disk": (100_000, 8_000)}
"""The same where they are to fill something."""
CLIENT_S, DRAIN_S = 300.0, 120.0
FULL_S = 60.0
"""Until the spool must be full."""
DISK_BYTES = 64 << 20
"""Of a filesystem for the spool alone, which is full for a while."""
_FILL_BYTES = 1 << 16
SMALL_SEGMENTS: dict[str, object] = {"segment_bytes": 256 << 10, "min_free_bytes": 0}
ROOM: dict[str, dict[str, object]] = {
    "spool": {"max_bytes": 1 << 20, **SMALL_SEGMENTS},
    "ingest": {"max_stream_message_bytes": 64 << 10},
}
"""Settings of a spool that is full while Kafka is away."""
_MOST_SHOWN = 3
_BEGUN = 200
"""Records in the log when the trouble begins."""


@dataclass
class Outcome:
    """The fate of a client's records."""

    acked: dict[int, int] = field(default_factory=dict)
    """Partition by number; -1 if the client does not say."""
    failed: list[str] = field(default_factory=list)
    stored: int = 0
    faults: list[str] = field(default_factory=list)


def load_of(trouble: str) -> tuple[int, int]:
    """Records that a client sends, and how many a second."""
    return FILLING.get(trouble, LOAD)


def settings_of(trouble: str) -> dict[str, dict[str, object]]:
    """The daemon's, by table."""
    if trouble == "full":
        return ROOM
    return {**ROOM, "spool": SMALL_SEGMENTS} if trouble == "disk" else {}


@contextmanager
def spool_disk(place: Path, trouble: str) -> Iterator[None]:
    """If the trouble asks for it, a filesystem for the spool in `place`/bruce alone. Raises Skipped."""
    if trouble != "disk":
        yield
        return
    with mounted(place / "image", place / "bruce/spool", DISK_BYTES) as spool:
        (spool / "lost+found").rmdir()
        yield


def run_trial(program: Program, trouble: str, bruce: Bruce, target: Target, count: int, rate: int) -> Outcome:
    """Run a client against a daemon that has its Kafka input at `bruce.kafka_port`, and judge."""
    acked = bruce.directory.parent / "acked"
    command = [
        *program.command,
        f"127.0.0.1:{bruce.inputs[0]['kafka']}",
        TOPIC,
        str(FIRST),
        str(count),
        str(acked),
    ]
    with (bruce.directory.parent / "client.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, str(rate)],
            stdout=log,
            stderr=log,
            env={**os.environ, **program.environ},
            start_new_session=True,
        )
        stopping, codes = threading.Event(), list[int]()

        def wait() -> None:
            codes.append(_end_of(process))
            stopping.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        # Not in the other thread: a daemon that it had started would end with it (Bruce.start).
        _make_trouble(trouble, bruce, target, stopping)
        waiter.join()
    (code,) = codes
    found = _read(acked)
    if code:
        found.faults.append(f"the client ended with {code}: see {bruce.directory.parent}/client.log")
    _judge(found, program, trouble, bruce, target, count)
    return found


def _end_of(process: subprocess.Popen[bytes]) -> int:
    """Wait for a client, and end one that does not end."""
    try:
        return process.wait(CLIENT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _read(path: Path) -> Outcome:
    found = Outcome()
    text = path.read_text() if path.exists() else ""
    # A client that was killed may have left half a line.
    for line in text[: text.rfind("\n") + 1].splitlines():
        number, partition, *rest = line.split(maxsplit=2)
        if partition == "failed":
            found.failed.append(" ".join(rest))
        else:
            found.acked[int(number)] = int(partition)
    return found


def _judge(found: Outcome, program: Program, trouble: str, bruce: Bruce, target: Target, count: int) -> None:
    expect = found.faults.append
    try:
        wait_until(lambda: bruce.status()["backlog"] == 0, DRAIN_S, "everything to be delivered")
    except TookTooLong as error:
        expect(str(error))
    status = bruce.status()
    found.stored = int(status["received"])
    if len(found.acked) != count:
        expect(f"{len(found.acked)} of {count} acknowledged; {found.failed[:_MOST_SHOWN]}")
    if found.stored != count and trouble not in ("full", "disk"):
        expect(f"{found.stored} of {count} are in the log")
    if trouble in ("full", "disk") and not status["kafka"]["refused"]:
        expect("the spool was never full")
    if status["discarded"]:
        expect(f"discarded: {status['discarded']}")
    records = consume(target.bootstrap, TOPIC, PARTITIONS, int(status["delivered"]))
    # A killed deliverer sends again what was on its way, as the contract has it.
    _judge_records(found, records, program, once=trouble not in ("delivery", "daemon", "outage", "hang"))


def _judge_records(found: Outcome, records: list[Message], program: Program, *, once: bool) -> None:
    seen: dict[int, int] = defaultdict(int)
    last: dict[int, int] = {}
    wrong: dict[str, list[int]] = defaultdict(list)
    for record in records:
        number, place = int(record.value() or b""), int(record.partition() or 0)
        seen[number] += 1
        if record.key() != b"%d" % (number % 10):
            wrong["with another key"].append(number)
        if program.headers and dict(record.headers() or []).get("n") != record.value():
            wrong["with other headers"].append(number)
        if found.acked.get(number, -1) not in (-1, place):
            wrong["in another partition"].append(number)
        if seen[number] == 1:
            if number < last.get(place, -1):
                wrong["out of order"].append(number)
            last[place] = number
    wrong["missing"] = [number for number in found.acked if not seen[number]]
    wrong["twice"] = [number for number, times in seen.items() if times > 1] if once else []
    found.faults += [
        f"{len(some)} {how}, such as {some[:_MOST_SHOWN]}" for how, some in wrong.items() if some
    ]


def _make_trouble(trouble: str, bruce: Bruce, target: Target, stopping: threading.Event) -> None:
    if trouble == "none":
        return
    with suppress(TookTooLong):
        wait_until(
            lambda: stopping.is_set() or bruce.word(Field.WRITTEN_SEQUENCE) > _BEGUN, 60, "the first records"
        )
    if not stopping.is_set():
        TROUBLES.get(trouble, _kills_of(trouble))(bruce, target, stopping)


def _kills_of(role: str) -> Callable[[Bruce, Target, threading.Event], None]:
    def kill(bruce: Bruce, _target: Target, stopping: threading.Event) -> None:
        killed = {0}
        for _ in range(KILLS):
            with suppress(TookTooLong):
                wait_until(lambda: bruce.workers().get(role, 0) not in killed, 20, f"another {role}")
            if stopping.wait(GAP_S):
                return
            killed.add(bruce.kill(role))

    return kill


def _kill_daemon(bruce: Bruce, _target: Target, stopping: threading.Event) -> None:
    for _ in range(KILLS - 2):
        if stopping.wait(2 * GAP_S):
            return
        bruce.kill_all()
        time.sleep(GAP_S)
        bruce.start()


def _stop_kafka(_bruce: Bruce, target: Target, _stopping: threading.Event) -> None:
    target.stop_all()
    time.sleep(AWAY_S)
    target.start_all()


def _fill_spool(bruce: Bruce, target: Target, stopping: threading.Event) -> None:
    """Keep Kafka away until the spool has been full for a while, or the client has sent all that it has."""
    target.stop_all()
    with suppress(TookTooLong):
        wait_until(
            lambda: stopping.is_set() or bool(bruce.status()["kafka"]["refused"]), FULL_S, "a full spool"
        )
    stopping.wait(AWAY_S)
    target.start_all()


def _hang_kafka(_bruce: Bruce, target: Target, _stopping: threading.Event) -> None:
    for broker in range(1, target.size + 1):
        target.freeze(broker)
    time.sleep(AWAY_S)
    for broker in range(1, target.size + 1):
        target.thaw(broker)


def _fill_disk(bruce: Bruce, target: Target, stopping: threading.Event) -> None:
    """Take every free byte of the spool's filesystem, and stop Kafka: else delivered segments make room."""
    filler = bruce.spool / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(_FILL_BYTES))
    _fill_spool(bruce, target, stopping)
    filler.unlink()


TROUBLES: dict[str, Callable[[Bruce, Target, threading.Event], None]] = {
    "daemon": _kill_daemon,
    "outage": _stop_kafka,
    "hang": _hang_kafka,
    "full": _fill_spool,
    "disk": _fill_disk,
}
NAMES = ("none", "kafka", "ingest", "keeper", "delivery", *TROUBLES)
