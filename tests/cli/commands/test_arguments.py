"""The arguments of several commands: the files that they read, missing or renamed meanwhile; their errors."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.commands.arguments import file_errors
from cli.terminal.errors import BadArgument
from spool.errors import ReadFailed
from spool.format.segment import list_files
from spool.layout import SEGMENT, SENT, Layout
from spool.read.overview import segment_paths
from tests.cli.inspecting import inspect, lines


@pytest.mark.parametrize(
    ("code", "words"), [(errno.EACCES, "read"), (errno.EROFS, "written"), (errno.ENOSPC, "written")]
)
def test_what_the_file_system_refuses(code: int, words: str) -> None:
    """One sentence says which file, and whether it was to be read or written."""
    with pytest.raises(BadArgument, match=f"^lock cannot be {words}: {os.strerror(code)}$"), file_errors():
        raise OSError(code, os.strerror(code), "lock")


def test_a_disk_that_fails_is_no_wrong_argument() -> None:
    """The error keeps its own sentence and exit code."""
    with pytest.raises(ReadFailed), file_errors():
        raise ReadFailed(errno.EIO, os.strerror(errno.EIO), "segment")


def test_files_by_themselves(layout: Layout, tmp_path: Path) -> None:
    """A segment without its spool, under any name."""
    bare = tmp_path / "anything"
    bare.write_bytes(layout.segment(1, ".spare").read_bytes())
    assert [one["sequence"] for one in lines(bare)] == list(range(20))
    report = json.loads(inspect("verify", "--json", bare).stdout)
    size = bare.stat().st_size
    assert {report.pop(key) for key in ("tool", "host", "boot_id", "made")}
    assert report == {
        "version": 1,
        "spool": None,
        "segments": 1,
        "frames": 2,
        "messages": 20,
        "bytes": size,
        "damaged": False,
        "findings": [],
    }


def test_what_no_command_can_read(layout: Layout, tmp_path: Path) -> None:
    """Missing, wrong and contradictory things: one sentence each, and a documented exit code."""
    other = tmp_path / "letter.txt"
    other.write_text("dear reader")
    missing = tmp_path / "missing.seg"
    cases: list[tuple[list[object], int, str]] = [
        (["records", missing], 2, f"{missing} cannot be read: No such file or directory"),
        (["verify", missing], 2, f"{missing} cannot be read: No such file or directory"),
        (["records", other], 1, f"{other} is no segment: it does not begin with a segment header"),
        (["records", "--spool", tmp_path / "none"], 3, f"{tmp_path / 'none'} holds no spool"),
        (["verify", "--spool", tmp_path / "none"], 3, f"{tmp_path / 'none'} holds no spool"),
        (["verify", "--spool", other], 2, f"{other}"),
        (["records", layout.directory], 2, f"{layout.directory} is a directory; if it is a spool"),
        (["records", "--spool", layout.directory, other], 2, "give either segment files or --spool"),
        (["records", "--spool", layout.directory, "--from", 9, "--to", 8], 2, "--from 9 is behind --to 8"),
    ]
    for arguments, code, sentence in cases:
        done = inspect(*arguments, code=code)
        assert done.stderr.startswith(sentence), arguments
        assert (done.stderr.count("\n"), done.stdout) == (1, ""), arguments
    found = json.loads(inspect("verify", "--json", other, code=1).stdout)["findings"]
    assert [one["kind"] for one in found] == ["header"]


@pytest.mark.parametrize(
    "command", ["records", "frames", "timeline", "segments", "show 5", "find 1", "export"]
)
def test_a_name_that_changes(layout: Layout, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """A segment with only resolved messages is renamed between its listing and its reading: it is read."""
    (spare,) = list_files(layout)
    spare.rename(layout.segment(0, SEGMENT))
    arguments = (*command.split(), "--spool", layout.directory)
    before = inspect(*arguments).stdout

    def renaming(listing: Callable[[Layout], list[Path]]) -> Callable[[Layout], list[Path]]:
        def listed(of: Layout) -> list[Path]:
            found = listing(of)
            for path in found:
                path.rename(path.with_suffix(SENT))
            return found

        return listed

    monkeypatch.setattr("spool.format.segment.list_files", renaming(list_files))
    monkeypatch.setattr("spool.read.overview.segment_paths", renaming(segment_paths))
    after = inspect(*arguments).stdout
    if command == "show 5":
        # The new name of the segment says that its messages are delivered.
        before = before.replace(
            "not yet: it waits for its turn, or for Kafka", "yes: Kafka has acknowledged it"
        )
    assert after.replace(".sent", ".seg") == before


@pytest.mark.parametrize(
    "command", ["records", "frames", "timeline", "segments", "show 5", "find 1", "export"]
)
def test_a_file_that_is_not_there(tmp_path: Path, command: str) -> None:
    """A named file that does not exist is an error: one sentence, code 2."""
    done = inspect(*command.split(), tmp_path / "1.seg", code=2)
    assert done.stderr == f"{tmp_path / '1.seg'} cannot be read: No such file or directory\n"
