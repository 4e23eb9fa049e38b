"""Opening a spool: leftovers are put in order, and untrusted data is named."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from spool.errors import SpoolBusy, UnknownVersion
from spool.format.scan import read_header
from spool.format.segment_format import HEADER, HEADER_BYTES, VERSION
from spool.layout import SPARE
from spool.log.recovery import open_spool
from spool.native.digest import digest
from spool.shared.state import Field
from tests.spool.fixture import SEGMENT_BYTES, SpoolFixture


def later_version(path: Path) -> None:
    """Change a segment into one of a later release."""
    record = np.frombuffer(path.read_bytes()[:HEADER_BYTES], HEADER).copy()
    record["version"] = VERSION + 1
    record["check"] = digest(record.tobytes()[:-8])
    with path.open("r+b") as file:
        file.write(record.tobytes())


def test_two_daemons_never_share_a_spool(spool: SpoolFixture) -> None:
    """The second one is refused, gets the holder's name, and changes nothing."""
    spool.fill(3)
    before = {p.name: p.read_bytes() for p in spool.layout.segments.iterdir()}
    with pytest.raises(SpoolBusy, match=str(os.getpid())):
        open_spool(spool.options)
    assert {p.name: p.read_bytes() for p in spool.layout.segments.iterdir()} == before
    spool.reopen()


def test_a_child_keeps_the_spool_until_it_ends(spool: SpoolFixture) -> None:
    """A worker that outlives its supervisor still owns the spool; the lock goes with the last of them."""
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b".")
        os.read(go[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        spool.crash()
        with pytest.raises(SpoolBusy):
            open_spool(spool.options)
    finally:
        os.write(go[1], b".")
        os.waitpid(child, 0)
    spool.open()


def test_a_successor_waits_for_those_that_die(spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that is killed and started again at once waits for dying processes that hold the spool."""
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go[1])
        os.write(ready[1], b".")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    spool.crash()

    def wait(_: float) -> None:
        os.write(go[1], b".")
        os.waitpid(child, 0)

    # The module's own name for it: threads of other tests sleep, too.
    monkeypatch.setattr("spool.storage.lock.time", SimpleNamespace(sleep=wait, monotonic=time.monotonic))
    spool.open()
    with pytest.raises(ChildProcessError):
        os.waitpid(child, 0)


def test_a_stale_lock_file_is_no_lock(spool: SpoolFixture) -> None:
    """A lock file that names a process of the past locks no process out."""
    spool.crash()
    spool.layout.lock.write_text("999999\n")
    spool.open()


@pytest.mark.parametrize("where", ["live", "named"])
def test_a_later_version_is_refused_and_left_alone(spool: SpoolFixture, where: str) -> None:
    """A spool that a later release wrote is refused by name, and none of its files is moved or removed."""
    spool.fill(3)
    if where == "named":
        spool.step()
    path = spool.last_path()
    assert (path.suffix == SPARE) == (where == "live")
    spool.crash()
    later_version(path)
    before = {p: p.read_bytes() for p in spool.layout.segments.iterdir()}
    with pytest.raises(UnknownVersion, match=f"version {VERSION + 1}"):
        spool.open()
    assert {p: p.read_bytes() for p in spool.layout.segments.iterdir()} == before
    assert list(spool.layout.quarantine.iterdir()) == []


def test_leftovers_are_removed_and_the_spool_opens(
    spool: SpoolFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Half-made files of any kind are cleaned away, counted, and no message is lost."""
    sent = spool.fill(30)
    spool.crash()
    caplog.set_level("INFO")
    segments = spool.layout.segments
    (segments / "00000000000000000009.spare.tmp").write_bytes(b"bruceseg")
    (segments / "somebody's.tmp").mkdir()
    (segments / "00000000000000000500.seg").write_bytes(b"")
    (segments / "00000000000000000099.spare").write_bytes(b"")
    (segments / "00000000000000000098.spare").write_bytes(bytes(SEGMENT_BYTES))
    (segments / "notes.txt").write_text("not ours")
    spool.open()
    sent += spool.fill(30)
    assert spool.records() == list(enumerate(sent))
    assert "half-made or outdated" in caplog.text
    assert (segments / "notes.txt").exists()
    assert not (segments / "00000000000000000500.seg").exists()


def test_spares_of_another_size_or_without_blocks_are_replaced(spool: SpoolFixture) -> None:
    """After a change of segment_bytes no old spare is used; neither is a sparse one from a copy."""
    sent = spool.fill(30)
    spool.crash()
    spool.replace(segment_bytes=3 * SEGMENT_BYTES)
    spool.open()
    first = spool.writer.number
    sent += spool.fill(100)
    sizes = {spool.layout.segment(n, SPARE).stat().st_size for n in spool.layout.list_spares() if n > first}
    assert sizes == {3 * SEGMENT_BYTES}
    spool.crash()
    spare = spool.layout.segment(spool.layout.list_spares()[-1], SPARE)
    data = spare.read_bytes()[:HEADER_BYTES]
    spare.unlink()
    with spare.open("wb") as file:
        file.write(data)
        file.truncate(3 * SEGMENT_BYTES)
    spool.open()
    assert all(
        spool.layout.segment(n, SPARE).stat().st_blocks * 512 >= 3 * SEGMENT_BYTES
        for n in spool.layout.list_spares()
    )
    assert spool.records() == list(enumerate(sent))


def put_back(spool: SpoolFixture, backup: Path) -> None:
    """The log of an earlier time takes the place of the one that the shared state tells of."""
    spool.crash()
    shutil.rmtree(spool.layout.directory)
    shutil.copytree(backup, spool.layout.directory)


@pytest.mark.parametrize("more", [1, 40])
@pytest.mark.parametrize("end", ["killed", "stopped", "empty", "epoch"])
def test_a_log_that_was_put_back_gives_no_number_again(
    spool: SpoolFixture, tmp_path: Path, end: str, more: int
) -> None:
    """A later life gave some out, in the same segment or in others: it goes on at a new epoch, for good."""
    backup, stored = tmp_path / "backup", [] if end == "empty" else spool.fill(3)
    spool.step()
    if end == "stopped":
        spool.stop()
    else:
        spool.crash()
    shutil.copytree(spool.layout.directory, backup)
    if end == "empty":
        for path in (backup / "segments").iterdir():
            path.unlink()
    spool.open()
    if end == "epoch":
        # The later life had one of its own.
        spool.shared.words[Field.WRITTEN_SEQUENCE] = 1 << 32
        spool.reopen()
    for _ in range(more):
        spool.fill(1)
    given_out = int(spool.shared.words[Field.WRITTEN_SEQUENCE])
    put_back(spool, backup)
    before = spool.forgets
    spool.open()
    assert spool.forgets == before + 1
    # Before the first message it may be killed, or stopped.
    spool.reopen()
    spool.stop()
    spool.open()
    new = spool.fill(1)
    found = spool.records()
    assert found[: len(stored)] == [*enumerate(stored)]
    first = found[len(stored)][0]
    assert first > given_out
    assert found[len(stored) :] == [*enumerate(new, first)]


def test_a_log_that_was_put_back_whole_goes_on(spool: SpoolFixture, tmp_path: Path) -> None:
    """No later number was given out."""
    stored = spool.fill(3)
    spool.step()
    spool.crash()
    shutil.copytree(spool.layout.directory, tmp_path / "backup")
    spool.open()
    put_back(spool, tmp_path / "backup")
    spool.open()
    stored += spool.fill(1)
    assert spool.records() == [*enumerate(stored)]
    assert not spool.forgets


def test_segments_that_were_put_back_alone(spool: SpoolFixture, tmp_path: Path) -> None:
    """Index and shared state are of the later life: what they say of its messages is forgotten."""
    spool.fill(3)
    spool.step()
    shutil.copytree(spool.layout.segments, tmp_path / "backup")
    spool.fill(5)
    spool.step()
    synced = spool.synced
    spool.crash()
    shutil.rmtree(spool.layout.segments)
    shutil.copytree(tmp_path / "backup", spool.layout.segments)
    spool.open()
    assert spool.forgets == 1
    assert spool.fill(1) == [data for number, data in spool.records() if number > synced]
    spool.reopen()
    assert spool.forgets == 1


def test_a_suspect_behind_which_it_goes_on(spool: SpoolFixture) -> None:
    """A segment whose sync failed is sealed in a fresh file: a second sync of it would say nothing."""
    stored = spool.fill(2)
    spool.step()
    live = spool.layout.segment(*spool.layout.list_segments()[-1])
    spool.crash()
    spool.shared.words[Field.SUSPECT] = int(read_header(live)["number"])
    spool.shared.words[Field.WRITTEN_SEQUENCE] = len(stored) + 1
    before = live.stat().st_ino
    spool.open()
    assert live.stat().st_ino != before
    assert not spool.shared.words[Field.SUSPECT]
    assert spool.records() == [*enumerate(stored)]
