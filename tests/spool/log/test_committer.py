"""After a failed sync, the keeper writes the file's frames elsewhere, and announces nothing before that."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from spool.format.batch import Topics
from spool.format.segment import seal
from spool.format.wire import encode
from spool.index.committed import read_committed
from spool.index.segment_list import SegmentList
from spool.layout import SEGMENT, SENT, SPARE
from spool.log import committer
from spool.log.committer import renew
from spool.log.keeper import STANDS_S
from spool.read.reader import Reader
from spool.shared.state import Field
from tests.spool.fixture import SpoolFixture


class BadDisk:
    """Syncs fail while `bad` matches their path, once each time the file was dirtied: as in Linux."""

    def __init__(self) -> None:
        self.bad: Callable[[str], bool] = lambda _: False
        self.lied: list[int] = []
        """Inodes whose sync succeeded after it had failed."""
        self._failed: set[int] = set()

    def wrap(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            path, inode = os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd).st_ino
            if self.bad(path):
                self._failed.add(inode)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if inode in self._failed and not os.path.isdir(path):
                self.lied.append(inode)
            real(fd)

        return sync

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name in ("fsync", "fdatasync"):
                stack.enter_context(mock.patch.object(os, name, self.wrap(getattr(os, name))))
            yield


@pytest.fixture
def disk() -> Iterator[BadDisk]:
    """A disk whose syncs can fail."""
    made = BadDisk()
    with made.at_work():
        yield made
    assert made.lied == []


@pytest.fixture
def spool(disk: BadDisk, memory: Path) -> Iterator[SpoolFixture]:
    """A spool on that disk, with one frame that is synced."""
    made = SpoolFixture(memory)
    made.fill(1)
    made.step()
    assert made.synced == 3
    yield made
    made.crash()


def live(spool: SpoolFixture) -> str:
    """The name of the live segment's file."""
    return spool.last_path().name


def fail_once(spool: SpoolFixture, disk: BadDisk) -> None:
    """The next sync of the live segment fails."""
    name = live(spool)
    disk.bad = lambda path: path.endswith(name)
    spool.step()
    disk.bad = lambda _: False


def test_what_was_not_synced_goes_into_a_fresh_file(
    spool: SpoolFixture, disk: BadDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is announced until appender and bytes are elsewhere; numbers and digests stay the same."""
    spool.fill(3)
    path, number = spool.last_path(), spool.writer.number
    inode, before = path.stat().st_ino, spool.records()
    fail_once(spool, disk)
    assert spool.synced == 3
    assert spool.shared.words[Field.SUSPECT] == number
    assert spool.shared.words[Field.SYNC_ERROR] == errno.EIO
    spool.step()
    assert spool.synced == 3
    spool.fill(2)
    assert spool.writer.number == number + 1
    spool.step()
    assert spool.synced == 18
    assert path.stat().st_ino != inode
    assert (spool.layout.quarantine / f"{path.name}.suspect").stat().st_ino == inode
    assert spool.records()[:12] == before
    assert [s for s, _ in spool.records()] == list(range(18))
    first, second = spool.segments()
    assert second.header["previous"] == first.frames[-1].digest
    words = [int(spool.shared.words[f]) for f in (Field.SUSPECT, Field.SYNC_ERROR, Field.RENEWED)]
    assert words == [0, 0, 1]
    assert "could not be synced: Input/output error" in caplog.text
    assert "is rewritten, and synced" in caplog.text


def test_the_first_sync_of_a_segment_fails(memory: Path, disk: BadDisk) -> None:
    """Before the segment has a name: the fresh file takes its place as a spare, and is named."""
    spool = SpoolFixture(memory)
    sent = spool.fill(2)
    assert spool.last_path().suffix == SPARE
    fail_once(spool, disk)
    assert spool.synced == 0
    sent += spool.fill(2)
    spool.step()
    assert spool.synced == len(sent)
    assert [suffix for _, suffix in spool.layout.list_segments()] == [SEGMENT, SEGMENT]
    assert spool.records() == list(enumerate(sent))
    spool.crash()


def test_a_full_segment_is_renewed_at_once(spool: SpoolFixture, disk: BadDisk) -> None:
    """When the appender has long gone on, the next step renews it and commits the frames behind it."""
    name, sent = live(spool), 3
    while spool.writer.number == 1:
        spool.writer.append([encode(b"t", b"v" * 100)])
        sent += 1
    disk.bad = lambda path: path.endswith(name)
    spool.step()
    assert spool.synced == 3
    disk.bad = lambda _: False
    spool.step()
    assert spool.synced == sent


def test_every_process_dies_while_a_segment_is_suspect(spool: SpoolFixture, disk: BadDisk) -> None:
    """The shared state records it: successors neither sync the suspect nor append to it."""
    spool.fill(3)
    fail_once(spool, disk)
    for _ in range(2):
        spool.reopen()
        assert spool.synced == 3
    committed = read_committed(spool.layout.index)
    assert committed is not None
    assert committed[1][1] <= 3
    spool.fill(1)
    spool.step()
    assert spool.synced == 15


@pytest.mark.parametrize("which", [".tmp", "segments"], ids=["file", "directory"])
def test_the_fresh_file_fails_too(spool: SpoolFixture, disk: BadDisk, which: str) -> None:
    """The keeper tries another file, and again announces nothing before."""
    spool.fill(3)
    fail_once(spool, disk)
    spool.fill(1)
    disk.bad = lambda path: path.endswith(which)
    for _ in range(3):
        spool.keeper._committer._renew_at = 0.0
        spool.keeper.commit()
        assert spool.synced == 3
        assert spool.shared.words[Field.SUSPECT] == 1
    spool.keeper._committer._renew_at = 0.0
    disk.bad = lambda _: False
    spool.step()
    assert spool.synced == 15
    assert not list(spool.layout.segments.glob("*.tmp"))


def test_a_stop_does_not_wait_for_an_appender(spool: SpoolFixture, disk: BadDisk) -> None:
    """At the end no appender is left: the suspect is renewed, committed and sealed."""
    sent = 3 + len(spool.fill(3))
    name = live(spool)
    disk.bad = lambda path: path.endswith(name)
    spool.step()
    disk.bad = lambda _: False
    spool.stop()
    assert spool.synced == sent
    (segment,) = spool.segments()
    assert segment.footer
    assert spool.shared.words[Field.SUSPECT] == 0


def test_a_stop_on_a_disk_that_stays_bad(spool: SpoolFixture, disk: BadDisk) -> None:
    """Unsynced frames are neither sealed nor announced; the next start finds them all."""
    sent = 3 + len(spool.fill(3))
    disk.bad = lambda path: path.endswith((".seg", ".tmp"))
    spool.step()
    spool.stop()
    assert spool.synced == 3
    assert not spool.segments()[0].footer
    disk.bad = lambda _: False
    spool.open()
    assert spool.synced == 3
    sent += len(spool.fill(1))
    spool.step()
    assert spool.synced == sent


def test_the_keeper_rests_while_it_waits(spool: SpoolFixture, disk: BadDisk) -> None:
    """A keeper with a suspect segment that waits for its appender does not keep a processor busy."""
    spool.fill(1)
    fail_once(spool, disk)
    spool.keeper.commit()
    with mock.patch("spool.log.keeper.time", wraps=time) as clock:
        clock.sleep.side_effect = lambda _: None
        spool.keeper._wait()
        clock.sleep.assert_any_call(STANDS_S)
        clock.sleep.reset_mock()
        # Once for each commit that did not get on.
        spool.keeper._wait()
        clock.sleep.assert_not_called()


def test_a_seal_that_fails_is_made_in_a_fresh_file(spool: SpoolFixture, disk: BadDisk) -> None:
    """A footer whose sync failed is not believed."""
    first = spool.last_path()
    while spool.writer.number == 1:
        spool.fill(1)
    spool.keeper.commit()
    inode, failures = first.stat().st_ino, [1]
    disk.bad = lambda path: path.endswith(first.name) and bool(failures and failures.pop())
    assert spool.keeper._committer.seal_one()
    assert first.stat().st_ino != inode
    assert spool.segments()[0].footer


def test_a_seal_after_a_power_loss_fails(spool: SpoolFixture, disk: BadDisk) -> None:
    """Opening seals the segments of another boot; if that fails, it seals in a fresh file."""
    sent, path = spool.records(), spool.last_path()
    spool.crash()
    inode, failures = path.stat().st_ino, [1]
    disk.bad = lambda p: p.endswith(path.name) and bool(failures and failures.pop())
    spool.boot += 1
    spool.open()
    assert path.stat().st_ino != inode
    assert spool.segments()[0].footer
    assert spool.records() == sent


def test_a_name_that_is_not_durable_is_given_again(memory: Path, disk: BadDisk) -> None:
    """A directory whose sync failed is not believed at the next: the change is made again."""
    spool = SpoolFixture(memory)
    spool.fill(1)
    disk.bad = lambda path: path.endswith("segments")
    with pytest.raises(OSError, match="Input/output"):
        spool.step()
    assert spool.synced == 0
    assert spool.last_path().suffix == SPARE
    assert spool.shared.words[Field.SYNC_ERROR] == errno.EIO
    disk.bad = lambda _: False
    renamed, real = [], os.rename
    with mock.patch.object(os, "rename", lambda a, b: (renamed.append(Path(b).suffix), real(a, b))):
        spool.reopen()
    assert SEGMENT in renamed
    assert spool.synced == 3
    spool.crash()


def test_a_reader_goes_on_in_the_fresh_file(spool: SpoolFixture, disk: BadDisk) -> None:
    """The kernel may drop the suspect's pages: its readers go on in the fresh file, and miss nothing."""
    spool.fill(3)
    reader = Reader(SegmentList(spool.layout), Topics())
    reader.allow(*spool.shared.place(Field.SYNCED))
    assert reader.next() is not None
    assert reader.sequence == 3
    suspect = os.open(spool.last_path(), os.O_RDWR)
    fail_once(spool, disk)
    spool.fill(1)
    spool.step()
    os.pwrite(suspect, bytes(4000), 384 + 352)
    os.close(suspect)
    reader.allow(*spool.shared.place(Field.SYNCED))
    while reader.next() is not None:
        continue
    assert reader.sequence == 15
    assert reader.take_damage() == []
    reader.close()


def test_a_value_of_zeros_at_the_end_is_kept(spool: SpoolFixture, disk: BadDisk) -> None:
    """The fresh file ends behind the last frame, not behind the last byte that is not zero."""
    spool.append([encode(b"t", bytes(100))])
    fail_once(spool, disk)
    spool.fill(1)
    spool.step()
    assert spool.records()[3][1] == encode(b"t", bytes(100))
    assert spool.synced == 7


def test_bytes_that_cannot_be_read_cost_their_frames_alone(
    spool: SpoolFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """A memory page that the disk does not return becomes a hole; frames behind it are kept."""
    spool.fill(16)
    path, frames = spool.last_path(), spool.segments()[-1].frames
    real = os.pread

    def pread(fd: int, length: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".seg") and offset <= 4096 < offset + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, length, offset)

    with mock.patch.object(os, "pread", pread):
        renew(spool.layout, path)
    lost = {f.sequence for f in frames if f.offset < 8192 and f.offset + 352 > 4096}
    assert "cannot be read" in caplog.text
    tail = seal(path)
    assert tail[1] == frames[-1].sequence + 3 or frames[-1].sequence in lost
    assert {f.sequence for f in spool.segments()[-1].frames} <= {f.sequence for f in frames} - lost


def test_a_stop_leaves_a_segment_that_is_in_use(
    spool: SpoolFixture, disk: BadDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk gave no header, so the committer did not enter it: the next start has its messages."""
    sent = [*(data for _, data in spool.records()), *spool.fill(200)]
    assert spool.last_path().suffix == SPARE
    monkeypatch.setattr(committer.Committer, "_following", lambda _: None)
    spool.stop()
    monkeypatch.undo()
    spool.open()
    spool.step()
    assert [data for _, data in spool.records()] == sent


def test_a_suspect_that_is_called_sent_is_renewed(spool: SpoolFixture, disk: BadDisk) -> None:
    """All of it was delivered meanwhile, so it has another name: what comes behind it is committed."""
    spool.fill(3)
    path = spool.last_path()
    fail_once(spool, disk)
    spool.fill(2)
    path.rename(path.with_suffix(SENT))
    spool.step()
    assert spool.synced == 18


def test_only_the_last_suspect_is_kept(spool: SpoolFixture, disk: BadDisk) -> None:
    """A disk on which every sync fails does not fill its quarantine."""
    for _ in range(3):
        spool.fill(1)
        fail_once(spool, disk)
        spool.fill(1)
        spool.step()
        spool.step()
    assert spool.shared.words[Field.RENEWED] == 3
    assert len(list(spool.layout.quarantine.glob("*.suspect"))) == 1
    assert [s for s, _ in spool.records()] == list(range(21))


def test_a_suspect_before_others_that_are_in_use(spool: SpoolFixture, disk: BadDisk) -> None:
    """A new keeper finds several without footers, and cannot sync the first: no number is used twice."""
    sent = 3
    with mock.patch.object(spool.keeper._committer, "seal_one", return_value=False):
        sent += len(spool.fill(60))
        spool.step()
    first = spool.layout.segment(*spool.layout.list_segments()[0])
    spool.crash()
    disk.bad = lambda path: path.endswith(first.name)
    spool.open()
    assert spool.shared.words[Field.SUSPECT] == 1
    used = max(int(str(segment.header["number"])) for segment in spool.segments())
    assert spool.layout.list_spares()[0] > used
    disk.bad = lambda _: False
    sent += len(spool.fill(60))
    spool.step()
    assert spool.synced == sent
    assert [s for s, _ in spool.records()] == list(range(sent))
    numbers = [segment.header["number"] for segment in spool.segments()]
    assert numbers == list(range(1, len(numbers) + 1))
