"""The benches' instruments: what they say of things whose answer is known."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dispatch.embedded import EmbeddedKafka
from tools.benches import inspection, peers
from tools.benches.backlog import Group, group
from tools.benches.backlog import measure as measure_backlog
from tools.benches.bench import Bench
from tools.benches.day import BRUCE, NO_PAGE, RSYSLOG, Row, Use, goals, median, observe, pacing
from tools.benches.drain import LOOK_S, drain
from tools.benches.endtoend import judge
from tools.benches.latency import consuming
from tools.benches.machine import Skipped, compile_c, librdkafka_path
from tools.benches.peers import Running
from tools.benches.probe import await_intake
from tools.benches.report import Figure, Results, show
from tools.load import LoadOptions
from tools.load_process import run_load

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler is installed"
)


def test_a_figure_is_judged_by_its_ratio() -> None:
    """With a baseline the ratio of medians counts, without one the median itself."""
    against = Figure("a", [1.0, 8.0, 2.0], "x", at_least=0.5, baseline=[4.0, 3.0, 9.0])
    assert (against.value, against.ratio, against.met) == (2.0, 0.5, True)
    assert Figure("b", [5.0, 6.0, 7.0], "x", at_most=5.9).met is False
    assert Figure("c", [5.0], "x").met is None


def test_results_keep_the_last_run_of_each_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other benches' figures stay; NumPy's numbers are numbers; the table names what was missed."""
    path = tmp_path / "results.json"
    figures = [Figure("f", [np.float64(1)], "ms", at_most=np.float64(0.5), remark="slow")]
    Results(path).add("one", [], {"repeat": 1})
    Results(path).add("two", figures, {"dir": tmp_path})
    Results(path).add("one", figures, {"repeat": 3})
    found = json.loads(path.read_text())
    assert found["one"]["options"] == {"repeat": "3"}
    assert found["two"]["figures"][0]["value"] == 1
    show("two", figures)
    said = capsys.readouterr().out
    assert "MISSED" in said
    assert "f: slow" in said


def test_growth_is_that_of_the_second_half() -> None:
    """A backlog that fills first and then stays does not grow; the trailing silence does not count."""
    seconds = np.arange(0, 20, 0.1)
    written = 1000 * np.minimum(seconds, 18)
    low_watermark = written - np.minimum(500, 100 * seconds)
    accepted, delivered, growth, backlog = judge(np.column_stack([seconds, written, low_watermark]))
    assert (accepted, delivered) == (pytest.approx(1000), pytest.approx(1000))
    assert growth == pytest.approx(0, abs=1e-6)
    assert backlog == pytest.approx(500)


def test_what_looks_cost_is_the_median_of_the_lives() -> None:
    """One bad life of three does not count there, and does in the sum of all; so does the CPU time."""
    alone = inspection.Turn(1000, 10.0, 0, 0.0, 0.001)
    lives = [
        inspection.DaemonRun(alone, inspection.Turn(messages, 10.0, 2, 1.0, 0.002))
        for messages in (990, 400, 960)
    ]
    left, rate = inspection.judge(lives, "looking")
    assert (left.value, left.required, left.met) == (0.96, ">= 0.95", True)
    assert "0.400, 0.960, 0.990; all together 0.783, in 30 s" in left.remark
    assert "6 commands took 0.100 CPU s a second, 0.50 each" in left.remark
    assert (rate.value, rate.ratio) == (96.0, 0.96)
    assert next(inspection.judge(lives, "computing")).met is None


MEMORY = """
import os, sys, time
import numpy as np
from tools.benches.machine import cpu_seconds, private_bytes

before, cpu = private_bytes(os.getpid()), cpu_seconds(os.getpid())
own = np.ones(8 << 20, np.uint8)
with open(sys.argv[1], "wb") as file:
    file.truncate(8 << 20)
mapped = np.memmap(sys.argv[1], np.uint8, "r+")
mapped[:] = 1
grown = private_bytes(os.getpid()) - before
end = time.process_time() + 0.2
while time.process_time() < end:
    pass
print(grown, cpu_seconds(os.getpid()) - cpu)
"""


def test_private_memory_counts_what_no_file_backs(tmp_path: Path) -> None:
    """Memory of our own counts, a mapped file does not, and using the processor shows.

    In a process of its own, whose memory no other test gives back meanwhile.
    """
    ran = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path / "file"], capture_output=True, check=True, timeout=60
    )
    grown, cpu = ran.stdout.split()
    assert 7 << 20 < int(grown) < 14 << 20
    assert float(cpu) >= 0.1


def test_intake_is_seen_when_a_full_queue_moves(tmp_path: Path) -> None:
    """Not when the socket appears, and not while it only queues."""
    path = tmp_path / "s"
    times, seen = {}, threading.Event()

    def receive_late() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            time.sleep(0.2)
            receiver.bind(str(path))
            time.sleep(0.4)
            times["read"] = time.monotonic()
            receiver.recv(1000)
            seen.wait(60)

    thread = threading.Thread(target=receive_late)
    thread.start()
    try:
        taken = await_intake(path, 60)
    finally:
        seen.set()
        thread.join(60)
    assert taken >= times["read"]


@needs_compiler
def test_the_discarding_loop_counts_what_it_read(tmp_path: Path) -> None:
    """The baseline of the intake ends after the number of datagrams that it was given."""
    program = compile_c("discard_recvmmsg", tmp_path)
    with subprocess.Popen([program, tmp_path / "s", "30000"], stdout=subprocess.PIPE, text=True) as loop:
        assert loop.stdout
        assert loop.stdout.readline() == "ready\n"
        report = run_load(LoadOptions(tmp_path / "s", count=30_000), 60)
        said = json.loads(loop.communicate(timeout=60)[0])
    assert report["sent"] == said["received"] == 30_000
    assert said["cpu_seconds"] > 0


@needs_compiler
def test_the_producing_program_has_a_report_of_each_message(tmp_path: Path) -> None:
    """The baseline of the drain, with the library that bruce uses, headers, and properties given to it."""
    program = compile_c("produce_librdkafka", tmp_path)
    with EmbeddedKafka(brokers=1, topics=[("load", 3)]) as kafka:
        arguments = [librdkafka_path(), kafka.bootstrap_servers, "load", 3, 20_000, 112, 2, "linger.ms=5"]
        done = subprocess.run(
            [program, *map(str, arguments)], capture_output=True, text=True, check=True, timeout=60
        )
    said = json.loads(done.stdout)
    assert (said["reported"], said["failed"]) == (20_000, 0)
    assert said["seconds"] > 0


@pytest.mark.long
def test_a_drain_of_few_messages_has_a_rate(tmp_path: Path) -> None:
    """Delivered between two looks: it took time and CPU all the same, no less than the worker's start."""
    bench = Bench(tmp_path)
    with bench.kafka("embedded", brokers=1, partitions=1) as kafka:
        rate, cpu_us = drain(bench, kafka, Namespace(count=20, bytes=120))
    assert 0 < rate < 20 / LOOK_S
    assert cpu_us > 0


@needs_compiler
def test_a_slow_disk_lets_a_sync_wait_until_the_flag_is_gone(tmp_path: Path) -> None:
    """The library in front of fdatasync waits while its flag exists, and then syncs."""
    library, flag = compile_c("slow_sync", tmp_path, shared=True), tmp_path / "flag"
    flag.touch()
    code = "import os; f = os.open('x', os.O_CREAT | os.O_RDWR); os.fdatasync(f); print('synced')"
    environ = {**os.environ, "LD_PRELOAD": str(library), "SLOW_SYNC_FLAG": str(flag)}
    with subprocess.Popen(
        ["python3", "-c", code], cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True
    ) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        flag.unlink()
        assert process.communicate(timeout=60)[0] == "synced\n"


def test_without_a_compiler_the_baseline_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, instead of failing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Skipped, match="no C compiler"):
        compile_c("discard_recvmmsg", tmp_path)


@needs_compiler
def test_the_sender_of_the_day_sends_one_by_one_when_each_is_due(tmp_path: Path) -> None:
    """Each has the time at which it was due, evenly apart, and none is sent before."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "s"))
        datagram = b"head" + bytes(8) + b"0" * 19 + b" rest"
        program = Running(0, tmp_path / "s", datagram, timestamp_at=4)
        with pacing(Bench(tmp_path), program, rate=500, count=50):
            found = [(receiver.recv(100), time.time_ns()) for _ in range(50)]
    due = [int(data[12:31]) for data, _ in found]
    assert {after - before for before, after in pairwise(due)} == {2_000_000}
    assert all(at >= when for (_, at), when in zip(found, due, strict=True))
    stamps = [int.from_bytes(data[4:12], "big") for data, _ in found]
    assert stamps == [when // 1_000_000 for when in due]
    assert {(data[:4], data[31:]) for data, _ in found} == {(b"head", b" rest")}


@needs_compiler
def test_the_floor_of_the_day_hands_on_every_message(tmp_path: Path) -> None:
    """From the sender through the C program to the consumer, which reads the times out of the values."""
    bench = Bench(tmp_path)
    with (
        bench.kafka("embedded", brokers=1, partitions=2) as kafka,
        peers.PROGRAMS["C program"](bench, kafka.bootstrap) as program,
        consuming(kafka.bootstrap, 300, 0.0, 2, "pace") as consumer,
        pacing(bench, program, 1_000, 300),
    ):
        report = consumer(60.0)
    assert report["messages"] == 300
    assert 0 < report["p50"] <= report["p99"] <= report["max"]


def test_a_program_is_observed_with_all_its_processes() -> None:
    """CPU, wake-ups and memory of a process and of its child, by what they do."""
    busy = "print(flush=True)\nwhile True: pass"
    idle = "import time\nheld = b'x' * (8 << 20)\nwhile True: time.sleep(0.005)"
    code = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {busy!r}])\n{idle}"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            uses = observe(Running(process.pid, Path(), b"", lambda: {process.pid: "parent"}), 1.0)
        finally:
            os.killpg(process.pid, 9)
    parent = uses.pop("parent")
    (child,) = uses.values()
    assert parent.wake_ups > child.wake_ups
    assert child.cpu > parent.cpu
    assert 8 < parent.private <= parent.pss


def test_the_goals_of_the_day_are_those_of_all_processes() -> None:
    """Processes add up; medians of the turns count; rsyslog of the same run is the baseline."""

    def row(cpu: float, pss: float = 30.0) -> Row:
        uses = {"one": Use(cpu, 4.0, pss, 1.0), "two": Use(cpu, 5.0, pss, 1.0)}
        return Row(uses, {"p50": 9.0, "p99": 41.0})

    rows = [row(1.0), row(9.0), row(1.25)]
    assert median(rows).all.cpu == 2.5
    found = {
        f.name: f for f in goals({(1_000, BRUCE): rows, (1_000, RSYSLOG): [row(1.0)], (0, NO_PAGE): rows})
    }
    assert {name: figure.met for name, figure in found.items()} == {
        "1,000/s, CPU": True,
        "1,000/s, CPU against rsyslog": False,
        "1,000/s, p50": True,
        "1,000/s, p99": False,
        "1,000/s, PSS, bruce": True,
        "0/s, PSS, bruce, no page": True,
    }
    assert found["1,000/s, CPU against rsyslog"].ratio == 1.25


def test_a_peer_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the packages that have it."""
    monkeypatch.setattr(peers.shutil, "which", lambda *_names, **_path: None)
    for name in ("rsyslog", "syslog-ng"):
        with (
            pytest.raises(Skipped, match=f"{name}d? is not installed .Debian: {name}"),
            peers.PROGRAMS[name](Bench(tmp_path), "127.0.0.1:1"),
        ):
            pass


@pytest.fixture
def small_group() -> Iterator[Group]:
    """A control group with 64 MiB of memory."""
    try:
        with group(64 << 20) as made:
            yield made
    except Skipped as reason:
        pytest.skip(str(reason))


HOG = """
import sys
sys.stdin.read(1)
held = bytearray(24 << 20)
print("small", flush=True)
sys.stdin.read(1)
held += bytes(128 << 20)
"""


def test_a_group_counts_its_memory_and_the_processes_killed_for_it(small_group: Group) -> None:
    """A process within its limit is counted and lives; beyond the limit the kernel kills it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOG], **pipes) as process:
        assert process.stdin
        assert process.stdout
        small_group.add(process.pid)
        process.stdin.write(b"x")
        process.stdin.flush()
        assert process.stdout.readline() == b"small\n"
        assert 24 << 20 <= small_group.held_bytes() < 64 << 20
        assert small_group.killed() == 0
        process.stdin.close()
        assert process.wait(60) == -9
    assert small_group.killed() == 1


@pytest.mark.long
def test_a_backlog_is_delivered_within_its_memory(tmp_path: Path) -> None:
    """A small one, all of it, without a process killed; the rate is compared with that without a limit."""
    options = Namespace(gigabytes=0.005, memory_mib=400, size=1000, kafka="embedded", partitions=2)
    try:
        found = {f.name: f for f in measure_backlog(Bench(tmp_path, repeat=1), options)}
    except Skipped as reason:
        pytest.skip(str(reason))
    rate, killed = found["delivered, 400 MiB"], found["processes killed"]
    assert rate.value > 0
    assert rate.ratio
    assert rate.required == ">= 0.8"
    assert killed.met
