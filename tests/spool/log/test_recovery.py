"""Opening a spool: leftovers are put in order, and untrusted data is named.

These are the tests of `spool.index.headers` and `spool.index.identity`, too.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from spool.errors import NoSpool, SpoolBusy, UnknownVersion
from spool.format.segment_format import HEADER, HEADER_BYTES
from spool.index.identity import read_host, read_identity
from spool.layout import SPARE, Layout
from spool.log.recovery import open_spool
from spool.native.digest import digest
from tests.spool.fixture import SEGMENT_BYTES, SpoolFixture


def later_version(path: Path) -> None:
    """Change a segment into one of a later release."""
    record = np.frombuffer(path.read_bytes()[:HEADER_BYTES], HEADER).copy()
    record["version"] = 3
    record["check"] = digest(record.tobytes()[:-8])
    with path.open("r+b") as file:
        file.write(record.tobytes())


def flip(path: Path, at: int) -> None:
    """Change one byte of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x40]))


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
    with pytest.raises(UnknownVersion, match="version 3"):
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


def test_missing_segments_never_restart_the_numbering_under_the_same_uuid(spool: SpoolFixture) -> None:
    """When the segments are gone, so is the uuid: no (uuid, sequence) is used for two messages."""
    spool.fill(3)
    spool.step()
    before = spool.identity.spool
    spool.crash()
    for path in spool.layout.segments.iterdir():
        path.unlink()
    spool.open()
    assert spool.identity.spool != before
    spool.reopen()
    assert spool.identity.spool != before


def test_a_spool_that_never_held_anything_keeps_its_uuid(spool: SpoolFixture) -> None:
    """Starting twice without a message is one spool: its staging is found again."""
    before = spool.identity.spool
    spool.stop()
    spool.open()
    assert spool.identity.spool == before


@pytest.mark.parametrize("text", [None, "", "not a uuid\n", "\xff" * 40])
def test_a_missing_or_damaged_identity_is_taken_from_the_segments(
    spool: SpoolFixture, text: str | None
) -> None:
    """The uuid is in every segment; the file is restored from there, and numbers go on."""
    sent = spool.fill(30)
    before = spool.identity.spool
    spool.crash()
    if text is None:
        spool.layout.identity.unlink()
    else:
        spool.layout.identity.write_text(text, encoding="latin-1")
    spool.open()
    assert spool.identity.spool == before == read_identity(spool.layout)
    assert spool.layout.identity.read_text().startswith(str(uuid.UUID(bytes=before)))
    sent += spool.fill(1)
    assert spool.records() == list(enumerate(sent))


def test_the_identity_says_the_host(spool: SpoolFixture) -> None:
    """Opening a spool writes the host's name to it; an identity of an earlier release is completed."""
    spool.fill(1)
    spool.stop()
    uuid_line = f"{uuid.UUID(bytes=spool.identity.spool)}\n"
    secret = f"secret {spool.identity.secret.hex()}\n"
    whole = f"{uuid_line}host {socket.gethostname()}\n{secret}in use\n"
    for text in (
        whole,
        f"{uuid_line}host {socket.gethostname()}\nin use\n",
        f"{uuid_line}in use\n",
        uuid_line,
        f"{uuid_line}host another\nin use\n",
    ):
        spool.layout.identity.write_text(text)
        assert read_host(spool.layout) == (text.splitlines()[1][5:] if "host" in text else None)
        spool.open()
        assert spool.layout.identity.read_text() == whole
        assert spool.identity.spool == read_identity(spool.layout)
        spool.stop()


def test_no_spool_is_said_so(tmp_path: Path) -> None:
    """A directory that holds no spool is named in the error."""
    with pytest.raises(NoSpool, match=str(tmp_path)):
        read_identity(Layout(tmp_path))


@pytest.mark.parametrize("at", [0, 8, 20, 48, 56, 64, 380])
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "crashed"])
def test_a_damaged_header_of_the_last_segment_costs_no_message(
    spool: SpoolFixture, at: int, *, clean: bool
) -> None:
    """One bad byte in the last header: it is rewritten, every message is kept, and no number is reused.

    If the check is intact, it proves the restored header, and the log goes on unchanged.
    """
    sent = spool.fill(40)
    spool.step()
    path = spool.last_path()
    if clean:
        spool.stop()
    else:
        spool.crash()
    kept = path.read_bytes()[:HEADER_BYTES]
    flip(path, at)
    spool.open()
    evidence = (spool.layout.quarantine / f"{path.name}.header").read_bytes()
    assert evidence != kept
    assert len(evidence) == HEADER_BYTES
    assert spool.records() == list(enumerate(sent))
    more = spool.fill(2)
    base = 1 << 32 if at == 380 and not clean else len(sent)
    assert spool.records() == [*enumerate(sent), *enumerate(more, base)]
    assert int(spool.writer.tail[4]) == len(sent) + len(more)


def test_a_damaged_header_of_the_only_segment_is_mended_too(spool: SpoolFixture) -> None:
    """The first segment begins at 0 with nothing before it: its header is known."""
    sent = spool.fill(3)
    spool.step()
    spool.crash()
    flip(spool.layout.segment(0), 60)
    spool.open()
    assert spool.records() == list(enumerate(sent))


@pytest.mark.parametrize("frames", [True, False], ids=["frames", "garbage"])
def test_a_damaged_header_with_no_segment_around_it(spool: SpoolFixture, *, frames: bool) -> None:
    """The header is rebuilt from the frames; a file without frames goes to quarantine."""
    sent = spool.fill(40)
    spool.step()
    spool.crash()
    shutil.rmtree(spool.layout.index)
    paths = [spool.layout.segment(*pair) for pair in spool.layout.list_segments()]
    last, first = paths[-1], int(paths[-1].stem)
    for path in paths[:-1]:
        path.unlink()
    data = bytes(HEADER_BYTES) + last.read_bytes()[HEADER_BYTES:] if frames else b"garbage" * 1000
    last.write_bytes(data)
    spool.open()
    more = spool.fill(1)
    spool.step()
    if frames:
        assert spool.records() == [*enumerate(sent[first:], first), *enumerate(more, 1 << 32)]
    else:
        assert (spool.layout.quarantine / last.name).read_bytes() == data
        assert len(spool.records()) == 3


@pytest.mark.parametrize("at", [0, 60, 380])
def test_a_damaged_header_in_the_middle_costs_no_message(spool: SpoolFixture, at: int) -> None:
    """A sealed segment's header is rewritten as well, even if the segment before it is gone."""
    sent = spool.fill(120)
    for _ in range(5):
        spool.step()
    paths = [spool.layout.segment(*pair) for pair in spool.layout.list_segments()]
    spool.crash()
    flip(paths[1], at)
    spool.open()
    assert spool.records() == list(enumerate(sent))
    spool.crash()
    paths[1].unlink()
    flip(paths[2], at)
    spool.open()
    more = spool.fill(2)
    spool.step()
    assert spool.synced == len(sent + more)
    gone = range(int(paths[1].stem), int(paths[2].stem))
    assert spool.records() == [record for record in enumerate(sent + more) if record[0] not in gone]
    assert int(spool.writer.tail[4]) == len(sent + more)


def test_a_spare_with_messages_behind_a_torn_header_is_set_aside(spool: SpoolFixture) -> None:
    """Frames behind a header that does not verify are not overwritten: they go to quarantine."""
    spool.fill(2)
    path = spool.last_path()
    assert path.suffix == SPARE
    spool.crash()
    flip(path, 70)
    spool.open()
    assert (spool.layout.quarantine / path.name).exists()
    spool.fill(2)
    assert len(spool.records()) == 6
