"""Names of the spool's files that are something else: a pipe without a writer, a device without an end."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from cli.terminal.errors import FINE, FOUND, UNREACHABLE
from spool.errors import NotAFile, SpoolError
from spool.format.wire import encode
from spool.index.headers import is_unread
from spool.layout import SENT, SPARE, Layout
from spool.log.keeper import Keeper
from spool.log.recovery import boot_id, open_spool
from spool.marks.lease import Claim, lent_to
from spool.marks.outcome_file import write_outcomes
from spool.options import SpoolOptions
from spool.shared.ledger import Ledger
from spool.shared.state import SharedState
from spool.storage.disk import open_to_read, opened
from spool.storage.lock import is_held
from tests.cli.program import run
from tests.spool.fixture import SpoolFixture

LONGEST_S = 60
"""Far more than any command here takes; a pipe would block for ever."""
KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "directory": os.mkdir,
    "link": lambda path: path.symlink_to("/dev/zero"),
    "dangling": lambda path: path.symlink_to("nothing"),
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
}
FILES = [
    "identity",
    "lock",
    "hold",
    "ledger",
    "ledger.synced",
    "refused",
    "senders",
    "ages",
    f"segments/{0:020d}.seg",
    f"segments/{0:020d}.sent",
    f"segments/{1 << 40:020d}.seg",
    f"segments/{9:020d}.spare",
    "index/committed",
    "index/data.mdb",
    "index/lock.mdb",
    "delivery/data.mdb",
    "delivery/lock.mdb",
    "delivery/owner",
    "delivery/lease",
    "delivery/grant",
    "delivery/lanes",
    "delivery/outcomes/job-1.out",
    "delivery/outcomes/job-1.counts",
    "quarantine/old.torn",
]
COMMANDS = [
    ("status",),
    ("discards",),
    ("inspect", "segments"),
    ("inspect", "frames"),
    ("inspect", "records"),
    ("inspect", "verify"),
    ("inspect", "repair"),
    ("inspect", "show", "0"),
]


@contextmanager
def bounded() -> Iterator[None]:
    """A command that still waits after LONGEST_S is ended, and the test fails."""

    def end(*_: object) -> None:
        raise TimeoutError("it waits for a file that is none")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(LONGEST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A spool with sealed segments, one in use, a spare, marks and an outcome file, open in no process."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as name:
        spool = SpoolFixture(Path(name))
        spool.fill(60)
        spool.writer.append([encode(b"t0", b"v")], refused={1: (2, b"short")})
        spool.stop()
        layout = Layout(spool.options.directory)
        layout.outcomes.mkdir(parents=True, exist_ok=True)
        write_outcomes(layout.outcomes, "job-2", spool.identity.spool, np.array([0]), np.array([0], np.int32))
        yield spool.options.directory


def plant(spool: Path, name: str, kind: str) -> Path:
    """Replace a file by one of these objects."""
    path = spool / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    KINDS[kind](path)
    return path


@pytest.mark.sample(one_of=3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_looking(made: Path, tmp_path: Path, name: str, kind: str) -> None:
    """No command that looks at a spool opens it or hangs: it is skipped, or named in one sentence."""
    spool = tmp_path / "spool"
    shutil.copytree(made, spool)
    path = plant(spool, name, kind)
    for command in COMMANDS:
        with bounded():
            done = run(*command, "--spool", spool)
        assert done.returncode in (FINE, FOUND, UNREACHABLE), (command, done)
        assert "Traceback" not in done.stderr
    assert os.path.lexists(path)


@pytest.mark.sample(one_of=3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_starting(made: Path, tmp_path: Path, name: str, kind: str) -> None:
    """Neither a start nor the keeper opens it: they go on, or end with one sentence that names the path."""
    spool = tmp_path / "spool"
    shutil.copytree(made, spool)
    path = plant(spool, name, kind)
    options = SpoolOptions(spool, segment_bytes=256 << 10, max_bytes=16 << 20, min_free_bytes=0)
    bell, said = os.eventfd(0, os.EFD_NONBLOCK), ""
    try:
        with bounded():
            own = open_spool(options)
            try:
                Ledger(own.layout.ledger)
                keeper = Keeper(own.layout, own.identity, options, SharedState(tmp_path / "page"), bell=bell)
                keeper.stopping = True
                keeper.run()
            finally:
                own.lock.release()
    except (SpoolError, OSError) as error:
        said = str(error)
    finally:
        os.close(bell)
    assert not said or str(path) in said


@pytest.mark.parametrize("kind", KINDS)
def test_leases_and_locks(made: Path, tmp_path: Path, kind: str) -> None:
    """A job and the owner of the marks find no lease in it, and no lock that another process holds."""
    spool = tmp_path / "spool"
    shutil.copytree(made, spool)
    layout = Layout(spool)
    for path in (layout.lease, layout.grant, layout.lock, layout.hold):
        plant(spool, str(path.relative_to(spool)), kind)
        with bounded():
            assert not is_held(path)
    with bounded():
        assert lent_to(layout, boot_id()) is None
        with pytest.raises(NotAFile if kind != "dangling" else (NotAFile, OSError), match=str(layout.lease)):
            Claim(layout, boot_id())


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_is_called(tmp_path: Path, kind: str) -> None:
    """The error names the path, the type of the object, and the remedy."""
    path = plant(tmp_path, "file", kind)
    said = {"link": "a symbolic link", "dangling": "a symbolic link"}.get(kind, f"a {kind}")
    for way in (open_to_read, opened, is_unread):
        if way is is_unread:
            assert not is_unread(path)
            continue
        with pytest.raises(NotAFile, match=f"^{path} is {said} and no regular file: move it away$"):
            way(path)


def test_a_path_that_the_operator_names_may_be_a_link(made: Path, tmp_path: Path) -> None:
    """The spool's directory, or a segment file, may be a link."""
    shutil.copytree(made, tmp_path / "spool")
    (tmp_path / "link").symlink_to(tmp_path / "spool")
    assert run("inspect", "verify", "--spool", tmp_path / "link").returncode == FINE
    (tmp_path / "one.seg").symlink_to(Layout(tmp_path / "spool").segment(0))
    done = run("inspect", "verify", tmp_path / "one.seg")
    assert done.returncode == FINE, done


def test_strangers_are_neither_segments_nor_spares(tmp_path: Path) -> None:
    """Pipes and links that are named like segments or spares are not taken for files."""
    layout = Layout(tmp_path)
    layout.segments.mkdir()
    for number, suffix in enumerate((".seg", SENT, SPARE)):
        os.mkfifo(layout.segment(number, suffix))
        layout.segment(10 + number, suffix).symlink_to("/dev/null")
        layout.segment(20 + number, suffix).touch()
    assert layout.list_segments() == [(20, ".seg"), (21, SENT)]
    assert layout.list_spares() == [22]
    assert len(layout.list_strangers()) == 6
