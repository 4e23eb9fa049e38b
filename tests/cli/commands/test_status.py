"""`brucectl status`: the documented shape, correct with a dead daemon, and never a byte written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.terminal import errors
from dispatch.embedded import EmbeddedKafka
from ingest.buffers.staging import RESERVE, slots_for
from spool.format.wire import encode
from spool.index.identity import read_identity
from spool.layout import Layout
from spool.log.recovery import boot_id
from spool.shared.runtime import shared_state_path
from spool.shared.state import FORMAT
from tests.cli.program import run
from tests.cli.replay.test_drain import stage
from tests.daemon import ROOT, RunningBruce
from tests.spool.fixture import SpoolFixture
from tests.status.test_witness import spool as witnessed
from tests.status.test_witness import tier, write

ROLES = ["supervisor", "ingest", "keeper", "delivery"]


def shown(bruce: RunningBruce, *arguments: object) -> dict[str, Any]:
    """The output of `brucectl status --json`."""
    done = run("status", "--json", *arguments, environ=bruce.environ)
    report = dict(json.loads(done.stdout))
    assert (done.returncode, done.stderr) == (int(not report["healthy"]), "")
    return report


def state_of(*directories: Path) -> dict[str, tuple[str, int]]:
    """Content and modification time of every file."""
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for directory in directories
        for path in directory.rglob("*")
        if path.is_file()
    }


def check_shape(report: dict[str, Any]) -> None:
    """Exactly the keys of the contract, in its order, and the sum that always holds."""
    assert list(report) == [
        "version",
        "taken",
        "healthy",
        "unhealthy",
        "spool",
        "watermarks",
        "received",
        "delivered",
        "discarded",
        "backlog",
        "full",
        "disk",
        "lost_inputs",
        "workers",
        "brokers",
        "trouble",
        "dead_lettered",
        "acknowledgements",
        "kafka",
        "lent",
        "unadopted",
        "held",
        "other_release",
        "senders",
        "inputs",
        "rates",
        "topics",
        "topics_estimated",
        "oldest",
        "room",
        "last_trouble",
        "awaited",
        "witness",
    ]
    assert (report["version"], report["healthy"]) == (1, not report["unhealthy"])
    assert list(report["rates"]) == ["minute", "quarter_hour"]
    assert list(report["spool"]) == ["uuid", "directory", "bytes", "segments"]
    assert list(report["watermarks"]) == ["accepted", "written", "synced", "delivered"]
    worker_keys = ["role", "pid", "restarts", "alive", "silent_seconds", "waits_for_disk"]
    assert all(list(worker) == worker_keys for worker in report["workers"])
    broker_keys = ["id", "state", "offset", "in_flight", "acknowledged", "round_trip", "queue", "throttle"]
    assert all(list(broker) == broker_keys for broker in report["brokers"])
    settled = report["delivered"] + sum(report["discarded"].values()) + report["backlog"]
    assert report["received"] == settled
    marks = report["watermarks"]
    assert marks["accepted"] >= marks["written"] >= marks["synced"] >= marks["delivered"]


def test_alive(bruce: RunningBruce) -> None:
    """The counts, workers and brokers of a daemon at work."""
    bruce.send([*(encode(b"t", b"%d" % n) for n in range(30)), b"short", b"x" * 20])
    bruce.await_status(
        lambda s: (
            (s.received, s.delivered, s.watermarks.delivered, s.backlog) == (32, 30, 30, 0)
            and [broker.state for broker in s.brokers] == ["healthy"] * 3
            # The delivery worker tells them a moment after the counts.
            and sum(broker.acknowledged for broker in s.brokers) == 30
        )
    )
    report = shown(bruce)
    check_shape(report)
    assert (report["received"], report["delivered"], report["backlog"]) == (32, 30, 0)
    assert report["discarded"] == {"short": 1, "size": 1}
    assert report["watermarks"] == {"accepted": 30, "written": 30, "synced": 30, "delivered": 30}
    assert [worker["role"] for worker in report["workers"]] == ROLES
    assert all(worker["pid"] > 1 and worker["restarts"] == 0 for worker in report["workers"])
    assert report["workers"][0]["pid"] == bruce.pid
    assert [broker["id"] for broker in report["brokers"]] == [1, 2, 3]
    assert {broker["state"] for broker in report["brokers"]} == {"healthy"}
    assert report["spool"]["directory"] == str(bruce.spool)
    assert report["spool"]["segments"] == 1
    assert report["spool"]["bytes"] >= 256 << 10
    assert sum(broker["acknowledged"] for broker in report["brokers"]) == 30
    assert (report["topics"], report["oldest"], report["last_trouble"]) == ([], None, None)


def test_the_witness(tmp_path: Path) -> None:
    """A loss makes the spool unhealthy, in words and as a line by tier; one that has stopped is a note.

    A spool that is named by --spool is another than the configured one: the witness says nothing about it.
    """
    spool = SpoolFixture(tmp_path / "spool")
    spool.fill(3)
    spool.stop()
    directory, config = spool.layout.directory, tmp_path / "bruce.toml"
    kafka = '[kafka]\n"bootstrap.servers" = "localhost:9"\n'
    config.write_text(
        f'{kafka}[spool]\ndirectory = "{directory}"\n[witness]\ndirectory = "{tmp_path / "w"}"\n'
    )
    write(tmp_path / "w", tier("main", witnessed(missing=2), lag=7), tier("lake"))

    def lines(*arguments: object) -> list[list[str]]:
        found = run("status", *arguments).stdout.splitlines()
        return [words for line in found if "witness" in (words := line.split("\t")) or words[0] == "note"]

    complaint, main, lake = lines("--config", config)
    assert complaint[:2] == ["unhealthy", "witness"]
    assert complaint[2].endswith("of alpha: 2 missing; see brucectl audit --witness")
    assert (main, lake) == (
        ["witness", "main", "2 missing", "40", "7"],
        ["witness", "lake", "complete", "40", "0"],
    )
    assert lines("--spool", directory) == []
    (tmp_path / "w" / "witness.json").unlink()
    (note,) = lines("--config", config)
    assert note == ["note", f"the witness has not written anything to {tmp_path / 'w'} yet"]
    report = json.loads(run("status", "--json", "--config", config).stdout)
    check_shape(report)
    assert report["witness"] == {"written": None, "problem": note[1], "tiers": []}
    assert [one["condition"] for one in report["unhealthy"]] == ["stopped"]


def test_other_rights(bruce: RunningBruce, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user that may not write to the runtime directory also sees that the daemon is alive."""
    monkeypatch.setattr("os.access", lambda *_: False)
    assert shown(bruce)["workers"]


def test_a_daemon_of_another_release(bruce: RunningBruce) -> None:
    """The error gives the release, the pid and the remedy; once killed, the daemon counts as absent."""
    bruce.send([encode(b"t", b"v")])
    bruce.await_status(lambda s: s.delivered == 1)
    shared = shared_state_path(bruce.runtime, read_identity(Layout(bruce.spool)), boot_id())
    with shared.open("r+b", buffering=0) as file:
        file.write(b"brucepg9")
    sentence = (
        f"a daemon of another release is running (process {bruce.pid}; its page is brucepg9, ours is "
        f"{FORMAT.decode()}): restart the daemon, or use the brucectl of its release"
    )
    report = shown(bruce)
    check_shape(report)
    assert report["unhealthy"] == [{"condition": "release", "sentence": sentence}]
    assert report["other_release"] == {"pid": bruce.pid, "page": "brucepg9", "own": FORMAT.decode()}
    assert (report["workers"], report["rates"]["minute"]) == ([], None)
    traced = run("trace", "--topic", "t", environ=bruce.environ)
    assert (traced.returncode, traced.stderr) == (errors.UNREACHABLE, f"{sentence}\n")
    checked = run("doctor", environ=bruce.environ)
    assert sentence.partition(":")[0] in checked.stdout
    assert "no daemon is running" not in checked.stdout
    bruce.kill9()
    bruce.await_true(lambda: shown(bruce)["other_release"] is None)
    assert [one["condition"] for one in shown(bruce)["unhealthy"]] == ["stopped"]


def test_dead(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """After SIGKILL of everything: the same counts, no workers, no brokers, and not one byte changed."""
    bruce.send(encode(b"t", b"%d" % n) for n in range(30))
    bruce.await_status(lambda s: s.delivered == 30)
    kafka.down()
    bruce.send([*(encode(b"t", b"%d" % n) for n in range(20)), b"short"])
    bruce.await_status(lambda s: s.watermarks.synced == 50 and s.discarded == {"short": 1} and s.trouble)
    bruce.kill9()
    before = state_of(bruce.spool, bruce.runtime)
    report = shown(bruce)
    check_shape(report)
    assert (report["received"], report["delivered"], report["backlog"]) == (51, 30, 20)
    assert report["discarded"] == {"short": 1}
    assert report["watermarks"] == {"accepted": 50, "written": 50, "synced": 50, "delivered": 30}
    assert (report["workers"], report["brokers"]) == ([], [])
    assert [one["condition"] for one in report["unhealthy"]] == ["stopped"]
    assert report["last_trouble"]["sentence"].startswith("no broker can be reached")
    table = bruce.brucectl("status")
    assert table.returncode == 1
    # The daemon was killed in the middle of it: it is not over.
    assert b"\nnote\tlast trouble, last seen at " in table.stdout
    assert b"over" not in table.stdout
    assert b"\nunhealthy\tstopped\tno daemon is running on this spool, and 20 messages wait\n" in table.stdout
    assert (report["topics"], report["topics_estimated"]) == ([{"topic": "t", "backlog": 20}], False)
    assert report["oldest"]["sequence"] == 30
    assert report["rates"] == {"minute": None, "quarter_hour": None}
    assert state_of(bruce.spool, bruce.runtime) == before


def test_with_messages_in_staging(bruce: RunningBruce) -> None:
    """A burst that was received and not written is accepted, counted, and not lost."""
    staged = stage(bruce, 200)
    before = state_of(bruce.spool, bruce.runtime)
    report = shown(bruce)
    check_shape(report)
    marks = report["watermarks"]
    assert marks["accepted"] - marks["written"] == staged
    assert 0 < staged <= (1 + RESERVE) * slots_for(256 << 10)
    assert report["received"] == marks["accepted"]
    assert state_of(bruce.spool, bruce.runtime) == before
    bruce.start()
    after = bruce.await_status(lambda s: s.backlog == 0)
    assert (after.received, after.delivered) == (report["received"], report["received"])
    assert after.watermarks.written == marks["accepted"]


def test_after_a_restart(bruce: RunningBruce) -> None:
    """Counts survive restarts, clean and unclean."""
    for number, end in enumerate((bruce.kill9, bruce.stop, bruce.kill9), start=1):
        bruce.send([*(encode(b"t", b"%d" % n) for n in range(10)), b""])
        bruce.await_status(lambda s, n=number: s.delivered == 10 * n and s.discarded == {"short": n})
        end()
        report = shown(bruce)
        check_shape(report)
        assert (report["received"], report["delivered"]) == (11 * number, 10 * number)
        assert report["discarded"] == {"short": number}
        bruce.start()


@pytest.mark.parametrize("left_out", [["index"], ["delivery"], ["index", "delivery", "ledger", "lock"]])
def test_a_copy(bruce: RunningBruce, tmp_path: Path, left_out: list[str]) -> None:
    """A copy of a spool on another machine, complete or not; without marks no message counts as delivered."""
    bruce.send(encode(b"t", b"%d" % n) for n in range(10))
    bruce.await_status(lambda s: s.delivered == 10)
    bruce.kill9()
    copy = tmp_path / "copy"
    shutil.copytree(bruce.spool, copy, ignore=shutil.ignore_patterns(*left_out))
    before = state_of(copy)
    report = shown(bruce, "--spool", copy)
    check_shape(report)
    assert report["received"] == 10
    assert report["delivered"] == (0 if "delivery" in left_out else 10)
    assert state_of(copy) == before


def test_no_spool(tmp_path: Path) -> None:
    """A directory without a spool: one sentence, exit code 3."""
    done = run("status", "--spool", tmp_path / "none")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"{tmp_path}/none holds no spool; see [spool] directory\n"


def test_the_line_for_nagios_is_critical_where_status_warns(tmp_path: Path) -> None:
    """The line of docs/operating.md, unchanged, in a shell: 2 for a spool without a daemon."""
    line = "sh -c 'brucectl status || exit 2'"
    assert line in (ROOT / "docs/operating.md").read_text(encoding="utf-8")
    spool = SpoolFixture(tmp_path)
    spool.fill(2)
    spool.stop()
    programs = Path(sys.executable).parent
    environ = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "BRUCE_SPOOL_DIRECTORY": str(tmp_path / "spool"),
        "BRUCE_KAFKA_BOOTSTRAP_SERVERS": "localhost:9092",
    }
    codes = [
        subprocess.run(["sh", "-c", command], env=environ, capture_output=True, check=False).returncode
        for command in ("brucectl status", line)
    ]
    assert codes == [1, 2]
