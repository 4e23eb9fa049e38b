"""`brucectl inspect repair` and `reindex`: their output, their exit codes, and that a plan writes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.segment_format import VERSION
from spool.format.wire import encode
from spool.layout import Layout
from tests.cli.program import run
from tests.daemon import RunningBruce, consume
from tests.gallery import kinds
from tests.gallery.conftest import good, home
from tests.gallery.good import DELIVERED_ABOVE, DISCARDED, FIRST_UNDELIVERED, TOLD_BY_A_JOB, Good
from tests.gallery.kinds import SEALED, Copy, Spoil
from tests.gallery.trial import damaged
from tests.spool import plain

__all__ = ["good", "home"]
"""Fixtures."""
BEFORE = ("gone", "delivered_before", "discarded_before", "lost_messages")
"""Of a step, as --json has it: how many messages, and what had become of them."""


def looked_at(directory: Path) -> dict[str, tuple[str, int, int]]:
    """Hash, mode and time of every file and directory."""
    return {
        str(path): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mode,
            path.stat().st_mtime_ns,
        )
        for path in directory.rglob("*")
    }


def test_a_plan_and_its_application(good: Good, home: Path) -> None:
    """The plan names the losses and exits with 1; applied, it exits with 0; then nothing needs repair."""
    layout, hit = damaged(good, kinds.flipped_value, home)
    where = ["--spool", layout.directory]
    before = looked_at(layout.directory)
    done = run("inspect", "repair", *where)
    assert done.returncode == 1
    row = [good.names[SEALED], "352 bytes hold no good frame", "rewrite", "skip-damaged", "57", "3"]
    assert done.stdout.rstrip().split("\t") == [*row, f"{min(hit)}", "0", "3"]
    assert done.stderr == "nothing was changed; --mode skip-damaged --apply does it\n"
    assert looked_at(layout.directory) == before
    refused = run("inspect", "repair", *where, "--apply")
    assert refused.returncode == 1
    assert refused.stderr == (
        f"{layout.segments / good.names[SEALED]}: 352 bytes hold no good frame; "
        "--mode skip-damaged would mend it; nothing was done\n"
    )
    done = run("inspect", "repair", *where, "--mode", "skip-damaged", "--apply", "--json", "--hashes")
    assert done.returncode == 0
    report = json.loads(done.stdout)
    (step,) = report["steps"]
    assert step["lost"] == [{"first_sequence": min(hit), "messages": 3}]
    assert [step[name] for name in BEFORE] == [3, 0, 0, 3]
    assert (report["version"], report["mode"], report["applied"]) == (1, "skip-damaged", True)
    assert (report["host"], report["tool"][:6]) == (socket.gethostname(), "bruce ")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert report["boot_id"] == boot
    path = layout.quarantine / f"{good.names[SEALED]}.damaged"
    assert report["sha256"][str(path)] == hashlib.sha256(path.read_bytes()).hexdigest()
    again = run("inspect", "repair", *where)
    assert (again.returncode, again.stdout) == (0, "nothing is to be done\n")
    assert run("inspect", "verify", *where).returncode == 0


def test_the_mode_that_is_named_does_it_all(good: Good, home: Path) -> None:
    """If the first step needs a weaker mode than a later one, both complaints name the stronger mode."""
    layout, _ = damaged(good, kinds.header_flipped, home)
    kinds.marks_cut(Copy(layout, good))
    where = ["--spool", layout.directory]
    done = run("inspect", "repair", *where, "--json")
    modes = [step["mode"] for step in json.loads(done.stdout)["steps"]]
    assert (modes[0], modes[-1]) == ("truncate-tail", "skip-damaged")
    done = run("inspect", "repair", *where)
    assert done.stderr == "nothing was changed; --mode skip-damaged --apply does it\n"
    for weaker in ("strict", "truncate-tail"):
        done = run("inspect", "repair", *where, "--mode", weaker, "--apply")
        assert done.returncode == 1
        assert "--mode skip-damaged would mend it" in done.stderr
    assert run("inspect", "repair", *where, "--mode", "skip-damaged", "--apply").returncode == 0
    assert run("inspect", "verify", *where).returncode == 0


def test_messages_that_had_been_delivered(good: Good, home: Path) -> None:
    """They are gone from the log, and not lost: verify and the plan say so, where the marks know it."""
    layout, hit = damaged(good, kinds.flipped_sent, home)
    where = ["--spool", layout.directory]

    def damaged_frame() -> dict[str, object]:
        findings = json.loads(run("inspect", "verify", *where, "--json").stdout)["findings"]
        (found,) = (one for one in findings if one["kind"] == "frame")
        return dict(found)

    found = damaged_frame()
    assert list(found) == ["path", "offset", "severity", "kind", "sentence"]
    assert str(found["sentence"]).endswith(
        f"3 messages from {min(hit)} on cannot be read, all delivered before"
    )
    gone, at, delivered, lost = run("inspect", "repair", *where).stdout.rstrip().split("\t")[5:]
    assert (gone, at, delivered, lost) == ("3", f"{min(hit)}", "3", "0")
    (step,) = json.loads(run("inspect", "repair", *where, "--json").stdout)["steps"]
    assert step["lost"] == [{"first_sequence": min(hit), "messages": 3}]
    assert [step[name] for name in BEFORE] == [3, 3, 0, 0]
    (layout.delivery / "data.mdb").unlink()
    assert str(damaged_frame()["sentence"]).endswith("on cannot be read")


def test_a_file_by_itself(good: Good, home: Path) -> None:
    """The repaired copy goes to the given path; without a path, or over an existing file, it is refused."""
    layout, _ = damaged(good, kinds.flipped_value, home)
    file, to = layout.segments / good.names[SEALED], home / "mended.seg"
    assert run("inspect", "repair", file).returncode == 1
    apply = ["inspect", "repair", file, "--mode", "skip-damaged", "--apply"]
    assert run(*apply).returncode == 2
    assert run(*apply, "--to", to).returncode == 0
    assert run("inspect", "verify", to).returncode == 0
    done = run(*apply, "--to", to)
    assert (done.returncode, done.stderr) == (
        2,
        f"{to} is there already: give the mended copy another place\n",
    )


def test_what_is_refused(good: Good, home: Path, tmp_path: Path) -> None:
    """No spool, no segment, a newer release: one sentence each, and a documented code."""
    layout, _ = damaged(good, kinds.newer_version, home)
    letter = tmp_path / "letter"
    letter.write_text("dear reader")
    for arguments, code, words in (
        (["repair", "--spool", tmp_path], 3, "holds no spool"),
        (["reindex", "--spool", tmp_path], 3, "holds no spool"),
        (["repair", "--spool", layout.directory, "--apply"], 1, f"format version {VERSION + 1}"),
        (["repair", letter], 1, "is no segment"),
        (["repair", "--spool", layout.directory, "--to", letter], 2, "--to is for a FILE"),
    ):
        done = run("inspect", *arguments)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1), done
        assert words in done.stderr


@pytest.fixture
def untouchable(good: Good, home: Path) -> Iterator[Path]:
    """A copy on a filesystem that is mounted read-only if possible; otherwise it is not restricted."""
    layout = good.copy(home)
    flags = ["mount", "--bind", "-o", "ro", layout.directory, layout.directory]
    mounted = os.geteuid() == 0 and subprocess.run(flags, capture_output=True, check=False).returncode == 0
    yield layout.directory
    if mounted:
        subprocess.run(["umount", layout.directory], check=True)


@pytest.mark.parametrize(
    "command",
    [
        ["segments"],
        ["frames"],
        ["records"],
        ["show", "70"],
        ["find", "12:"],
        ["export"],
        ["timeline"],
        ["verify"],
        ["verify", "--json", "--hashes"],
        ["repair"],
    ],
    ids=" ".join,
)
def test_looking_writes_nothing(untouchable: Path, command: list[str]) -> None:
    """On a read-only mount each command works, and every file stays unchanged, also LMDB's lock files."""
    before = looked_at(untouchable)
    done = run("inspect", *command, "--spool", untouchable)
    assert done.returncode == 0, done
    assert looked_at(untouchable) == before


def test_carving_writes_nothing(untouchable: Path) -> None:
    """The same for a separate file; the report has its hash."""
    file = next(path for path in sorted(untouchable.glob("segments/*.seg"))[::-1])
    before = looked_at(untouchable)
    report = json.loads(run("inspect", "carve", file, "--json", "--hashes").stdout)
    assert report["sha256"] == {str(file): hashlib.sha256(file.read_bytes()).hexdigest()}
    assert looked_at(untouchable) == before


def values(datagrams: Iterable[bytes]) -> set[bytes]:
    """The values of these messages."""
    return {found.value for found in map(plain.parse_datagram, datagrams) if isinstance(found, plain.Message)}


@pytest.mark.long
@pytest.mark.parametrize("spoil", [kinds.foreign_frame, kinds.all_headers_flipped, kinds.swapped])
def test_a_daemon_delivers_what_is_good(good: Good, tmp_path: Path, spoil: Spoil) -> None:
    """On the damaged spool it starts, delivers every good undelivered message, no other, and counts all.

    Beside it nothing is repaired nor planned: a plan would call the daemon's newest messages lost.
    """
    with EmbeddedKafka(brokers=1, topics=[("t0", 1), ("t1", 1), ("t", 1)]) as kafka:
        bruce = RunningBruce(tmp_path, kafka.bootstrap_servers)
        try:
            os.rename(good.copy(tmp_path / "copy").directory, bruce.spool)
            hit = spoil(Copy(Layout(bruce.spool), good))
            bruce.start()
            for options in ([], ["--apply"]):
                busy = run("inspect", "repair", "--spool", bruce.spool, *options, environ=bruce.environ)
                assert (busy.returncode, busy.stdout, busy.stderr.count("\n")) == (1, "", 1)
            bruce.send([encode(b"t", b"new")])
            seen = bruce.await_status(lambda s: s.backlog == 0 and s.received > good.account.received)
            assert seen.received == good.account.received + 1
            assert seen.received == seen.delivered + sum(seen.discarded.values())
            open_ones = set(range(FIRST_UNDELIVERED, len(good.sent)))
            open_ones -= {*DELIVERED_ABOVE, DISCARDED, *TOLD_BY_A_JOB, *hit}
            assert seen.discarded.get("damaged", 0) == len(hit)
            records = [r for t in ("t0", "t1") for r in consume(kafka.bootstrap_servers, t, 1, 1)]
            came = {record.value() for record in records}
            assert came >= values(good.sent[sequence] for sequence in open_ones)
            assert came <= values(good.sent.values())
        finally:
            bruce.close()


def test_an_export_says_where_it_comes_from(good: Good, home: Path) -> None:
    """Its report has the hash of each segment file, and says whether all could be read."""
    layout, _ = damaged(good, kinds.flipped_value, home)
    report = home / "origin.json"
    done = run("inspect", "export", "--spool", layout.directory, "--report", report)
    found = json.loads(report.read_text())
    assert (done.returncode, found["version"], found["whole"]) == (1, 1, False)
    assert sorted(found["sha256"]) == [str(layout.segments / name) for name in sorted(good.names)]


@pytest.mark.parametrize(
    ("report", "why"), [("/dev/full", "No space left on device"), ("/nope/x", "No such file or directory")]
)
def test_a_report_that_cannot_be_written(good: Good, home: Path, report: str, why: str) -> None:
    """The sentence names it, and not standard output, which has everything."""
    layout = good.copy(home)
    done = run("inspect", "export", "--spool", layout.directory, "--report", report)
    assert (done.returncode, done.stderr) == (2, f"{report} cannot be written: {why}\n")
    assert done.stdout
