"""`brucectl inspect export`, which `send --datagrams` reads, and messages that are not committed."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from spool.layout import Layout
from tests.cli.inspecting import PROGRAM, inspect, lines
from tests.cli.program import Ended, run
from tests.daemon import ROOT, RunningBruce
from tests.spool.fixture import SpoolFixture


@pytest.fixture
def other(tmp_path: Path) -> Iterator[RunningBruce]:
    """A daemon with its own spool."""
    with EmbeddedKafka(topics=[("t", 1)]) as kafka:
        directory = tmp_path / "other"
        directory.mkdir()
        with RunningBruce(directory, kafka.bootstrap_servers) as running:
            yield running


def exported(layout: Layout, *arguments: object) -> bytes:
    """The output of `export --datagrams`."""
    command = [
        *PROGRAM,
        "inspect",
        "export",
        "--datagrams",
        "--spool",
        layout.directory,
        *map(str, arguments),
    ]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=120).stdout


def send(data: bytes, *arguments: object, bruce: RunningBruce | None = None) -> Ended:
    """`send --datagrams` of these bytes."""
    with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data))):
        return run("send", "--datagrams", *arguments, environ=bruce.environ if bruce else None)


def test_there_and_back(layout: Layout, other: RunningBruce) -> None:
    """Exported messages are sent again unchanged: topics, keys, values, timestamps, without loss."""
    data = exported(layout)
    assert send(data, bruce=other).returncode == 0
    other.await_status(lambda s: s.watermarks.synced == 20)
    again = [json.loads(line) for line in run("inspect", "export", environ=other.environ).stdout.splitlines()]
    named = {
        "topic",
        "partition_key",
        "timestamp",
        "key",
        "value",
        "topic_base64",
        "key_base64",
        "value_base64",
    }
    before = lines("--spool", layout.directory)
    assert [{k: v for k, v in one.items() if k in named} for one in again] == [
        {k: v for k, v in one.items() if k in named} for one in before
    ]
    assert exported(layout, "--from", 3, "--limit", 2) in data


def test_a_stream_that_is_cut(layout: Layout, other: RunningBruce) -> None:
    """The whole messages before the cut are sent; the place of the error is named, and nothing is made up."""
    data = exported(layout, "--limit", 1)
    for sent, cut in enumerate((1, 3, 4, 20), 1):
        done = send(data + data[:cut], bruce=other)
        assert done.returncode == 2
        assert done.stderr == (
            f"at byte {len(data)} of standard input there is no whole datagram; all before it is sent\n"
        )
        other.await_status(lambda s: s.watermarks.synced == s.received == sent)  # noqa: B023


def test_what_does_not_go_together(layout: Layout) -> None:
    """One sentence each, and exit code 2."""
    cases = [
        (["send", "--datagrams", "--topic", "t"], "--datagrams takes none of the options"),
        (["send", "--datagrams", "value"], "give either a VALUE or"),
        (["send", "value"], "--topic is missing"),
        (["inspect", "timeline", "--step", "5x", "--spool", layout.directory], "--step 5x: expected"),
    ]
    for arguments, sentence in cases:
        done = run(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith(sentence)


def test_what_is_written_and_not_committed(tmp_path: Path) -> None:
    """Each command that shows messages or frames shows uncommitted ones too, and marks only these."""
    spool = SpoolFixture(tmp_path)
    spool.append([encode(b"t", b"early")] * 2)
    spool.step()
    spool.append([encode(b"t", b"late")])
    spool.crash()
    options = ["--spool", spool.layout.directory]
    for command in (["records"], ["find", "a"], ["frames"]):
        found = [json.loads(line) for line in inspect(*command, "--json", *options).stdout.splitlines()]
        assert [one["committed"] for one in found][-1] is False, command
        assert all(one["committed"] for one in found[:-1])
        *before, last = inspect(*command, *options).stdout.splitlines()
        assert "not committed" in last
        assert not [line for line in before if "not committed" in line]
    assert json.loads(inspect("show", 2, "--json", *options).stdout)["committed"] is False
    assert json.loads(inspect("show", 1, "--json", *options).stdout)["committed"] is True


def test_damage_on_the_way(layout: Layout) -> None:
    """Readable messages are printed; the others are reported on standard error and by exit code 1."""
    path = layout.segment(1, ".spare")
    with path.open("r+b") as file:
        file.seek(384 + 100)
        file.write(b"rot")
    done = inspect("records", "--json", "--spool", layout.directory, code=1)
    assert [json.loads(line)["sequence"] for line in done.stdout.splitlines()] == [17, 18, 19]
    assert done.stderr == f"{path}: 17 messages cannot be read at byte 384\n"
    report = json.loads(inspect("verify", "--json", "--spool", layout.directory, code=1).stdout)
    (found,) = report["findings"]
    assert (report["damaged"], report["spool"]) == (True, str(layout.directory))
    assert {**found, "sentence": ""} == {
        "path": str(path),
        "offset": 384,
        "severity": "damage",
        "kind": "frame",
        "sentence": "",
    }
    plain = inspect("verify", "--spool", layout.directory, code=1).stdout.splitlines()
    assert plain[0].startswith(f"damage\tframe\t{path}\t384\t")
    assert re.match(r"1 damaged place: 1 segment, 3 messages, [0-9.]+ [KM]iB verified in ", plain[1])
