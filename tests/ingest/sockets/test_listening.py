"""The datagram socket: made where it is wanted, taken over from the dead, handed over by systemd."""

from __future__ import annotations

import errno
import grp
import os
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ingest.errors import BadSocket
from ingest.sockets import listening
from ingest.sockets.listening import listen_unix, open_socket, open_to, set_timeout
from tests.users import NOBODY


def test_anybody_may_send(memory: Path) -> None:
    """The socket has the mode asked for, 0666 when none is, whatever the umask."""
    before = os.umask(0o077)
    try:
        open_socket(memory / "a").close()
        open_socket(memory / "b", 0o620).close()
    finally:
        os.umask(before)
    assert (memory / "a").stat().st_mode & 0o777 == 0o666
    assert (memory / "b").stat().st_mode & 0o777 == 0o620


@pytest.mark.parametrize("make", [open_socket, listen_unix])
@pytest.mark.parametrize("group", [None, grp.getgrgid(os.getgid()).gr_name])
def test_it_is_never_open_to_others(
    memory: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., socket.socket], group: str | None
) -> None:
    """From its first instant no other user can write to it, whatever the umask; which stays."""
    seen = []

    def look(path: Path, mode: int, group: str | None) -> None:
        seen.append(stat.S_IMODE(path.stat().st_mode))
        open_to(path, mode, group)

    monkeypatch.setattr(listening, "open_to", look)
    before = os.umask(0)
    try:
        make(memory / "socket", 0o620, group).close()
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert seen == [0 if group else 0o620]
    assert stat.S_IMODE((memory / "socket").stat().st_mode) == 0o620


@pytest.mark.parametrize("make", [open_socket, listen_unix])
@pytest.mark.parametrize(
    ("owner", "group", "mode", "said"),
    [
        (0, 0, 0o755, None),  # /run, and RuntimeDirectory= of a daemon that is root
        (0, 0, 0o1777, None),  # /tmp
        (0, 0, 0o775, None),  # a folder of a container that runs as any user of group 0
        (0, NOBODY, 0o755, None),
        (0, 54321, 0o775, None),  # a group without members
        (NOBODY, 0, 0o755, f"user {NOBODY} may replace the sockets"),
        (NOBODY, 0, 0o1777, f"user {NOBODY} may replace the sockets"),
        (0, NOBODY, 0o775, f"group {NOBODY} may replace the sockets .* chmod g-w"),
        (0, NOBODY, 0o1775, None),
        (0, 0, 0o777, "every user of this host may replace the sockets .* chmod o-w"),  # an emptyDir
    ],
)
def test_the_folder_is_one_that_no_other_user_changes(
    memory: Path, make: Callable[..., socket.socket], owner: int, group: int, mode: int, said: str | None
) -> None:
    """One in which another user or a group's member could put a socket in the place of ours is refused."""
    if os.geteuid():
        pytest.skip("giving a folder away needs root")
    folder = memory / "folder"
    folder.mkdir()
    os.chown(folder, owner, group)
    folder.chmod(mode)
    if said is None:
        make(folder / "socket").close()
        return
    with pytest.raises(BadSocket, match=said):
        make(folder / "socket")
    assert not list(folder.iterdir())


def test_a_private_group_is_ours_alone(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own group, as distributions make them, may write; not once it has another member."""
    folder, uid = memory / "folder", os.geteuid()
    folder.mkdir()
    os.chown(folder, -1, 54321)
    folder.chmod(0o775)
    users = [SimpleNamespace(pw_name="us", pw_uid=uid, pw_gid=54321)]
    members = ["us"]
    monkeypatch.setattr(listening, "pwd", SimpleNamespace(getpwall=lambda: users))
    monkeypatch.setattr(listening, "grp", SimpleNamespace(getgrgid=lambda _: SimpleNamespace(gr_mem=members)))
    open_socket(folder / "socket").close()
    members.append("them")
    with pytest.raises(BadSocket, match="group 54321"):
        open_socket(folder / "socket")
    members.remove("them")
    users.append(SimpleNamespace(pw_name="them", pw_uid=4321, pw_gid=54321))
    with pytest.raises(BadSocket, match="group 54321"):
        open_socket(folder / "socket")


def test_a_path_left_by_a_dead_daemon_is_taken_over(memory: Path) -> None:
    """A socket file without a process behind it does not keep the next daemon from starting."""
    open_socket(memory / "deep/down/socket").close()
    receiver = open_socket(memory / "deep/down/socket")
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.connect(str(memory / "deep/down/socket"))
    sender.send(b"there")
    assert receiver.recv(10) == b"there"
    sender.close()
    receiver.close()


@pytest.mark.parametrize("make", [open_socket, listen_unix])
@pytest.mark.parametrize("theirs", [open_socket, listen_unix])
def test_a_path_where_a_process_receives_is_refused(
    memory: Path, make: Callable[..., socket.socket], theirs: Callable[..., socket.socket]
) -> None:
    """A second daemon takes no socket from a live one, whichever kind it is; the error names the path."""
    live = theirs(memory / "socket")
    found = (memory / "socket").stat().st_ino
    with pytest.raises(BadSocket, match=f"another process receives at {memory / 'socket'}"):
        make(memory / "socket")
    assert (memory / "socket").stat().st_ino == found
    live.close()
    make(memory / "socket").close()


def test_a_path_that_cannot_be_asked_is_left_alone(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's socket that this user may not write to may have a process; one's own is taken over."""
    open_socket(memory / "socket").close()
    monkeypatch.setattr(listening, "probe", lambda _: errno.EACCES)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(BadSocket, match="remove it if no process receives there"):
            open_socket(memory / "socket")
    open_socket(memory / "socket").close()


def test_a_file_that_is_no_socket_is_left_alone(memory: Path) -> None:
    """Another file of that name is named in the error, and stays."""
    (memory / "socket").write_text("mine")
    with pytest.raises(BadSocket, match="is no socket"):
        open_socket(memory / "socket")
    assert (memory / "socket").read_text() == "mine"


def test_a_path_that_cannot_be_bound_is_named(memory: Path) -> None:
    """Too long a path is one sentence."""
    with pytest.raises(BadSocket, match="cannot make the datagram socket"):
        open_socket(memory / ("x" * 200))


def test_a_datagram_queued_before_anybody_reads_tells_its_sender(memory: Path) -> None:
    """Credentials are asked for before the first datagram can come."""
    receiver = open_socket(memory / "socket")
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.connect(str(memory / "socket"))
    sender.send(b"early")
    set_timeout(receiver)
    data, control, _, _ = receiver.recvmsg(10, 64)
    assert data == b"early"
    assert int.from_bytes(control[0][2][:4], sys.byteorder) == os.getpid()
    sender.close()
    receiver.close()


def test_a_quiet_socket_ends_the_wait(memory: Path) -> None:
    """The kernel ends a wait by itself, so that a signal between two looks is seen."""
    receiver = open_socket(memory / "socket")
    set_timeout(receiver)
    with pytest.raises(BlockingIOError):
        receiver.recv(1)
    receiver.close()


@pytest.mark.parametrize("make", [open_socket, listen_unix])
def test_mode_and_group(make: Callable[..., socket.socket], memory: Path) -> None:
    """A socket has the mode and group that were chosen; a group that is not there is named."""
    path, group = memory / "socket", grp.getgrgid(os.getgid()).gr_name
    make(path, 0o620, group).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o620
    assert path.stat().st_gid == os.getgid()
    with pytest.raises(BadSocket, match="no group 'missing-group'"):
        make(path, 0o620, "missing-group")
