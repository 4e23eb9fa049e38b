"""`bruce hold-socket` by itself: which bruce gets which sockets, and when one takes over from another."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ingest.sockets.holding import held_sockets
from ingest.sockets.inputs import doors_of
from tests.daemon import PATIENCE_S
from tests.holder import HELD, Holder

NOBODY = 65534


def send(path: Path, data: bytes) -> None:
    """One datagram."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(data, str(path))


def as_user(uid: int, work: Callable[[], str]) -> str:
    """A function's result as another user, in a process of its own."""
    if os.geteuid():
        pytest.skip("becoming another user needs root")
    inside, outside = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            said = work()
        except BaseException as error:  # noqa: BLE001  (the parent gets it)
            said = f"{type(error).__name__}: {error}"
        os.write(outside, said.encode())
        os._exit(0)
    os.close(outside)
    os.waitpid(child, 0)
    with os.fdopen(inside) as told:
        return told.read()


def as_nobody(work: Callable[[], str]) -> str:
    """The same, as the unprivileged user."""
    return as_user(NOBODY, work)


def let_go(held: list[tuple[str, socket.socket]]) -> None:
    """Be no user of the sockets any more."""
    for _, one in held:
        one.close()


def test_every_socket_with_what_waits_in_it(holder: Holder, memory: Path) -> None:
    """All kinds, with modes and groups; datagrams with their senders, and connections with their bytes."""
    with holder:
        send(memory / "bruce.sock", b"early")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sender:
            sender.connect(str(memory / "stream.sock"))
            sender.sendall(b"streamed")
        held = held_sockets(holder.folder, wait=False)
        doors = doors_of(held)
        assert [door.input.kind for door in doors] == ["datagram", "stream", "tcp", "datagram", "ack"]
        assert all(door.activated for door in doors)
        assert doors[-1].socket.getsockname() == str(memory / "ack.sock")
        data, about, _, _ = doors[0].socket.recvmsg(100, 100)
        assert data == b"early"
        assert about[0][1] == socket.SCM_CREDENTIALS
        assert int.from_bytes(about[0][2][4:8], sys.byteorder) == os.geteuid()
        connection, _ = doors[1].socket.accept()
        assert connection.recv(100) == b"streamed"
        connection.close()
        assert not any(os.get_inheritable(one.fileno()) for _, one in held)
        own = (memory / "own.sock").stat()
        assert (stat.S_IMODE(own.st_mode), own.st_gid) == (0o660, 1)
        assert stat.S_IMODE((memory / "bruce.sock").stat().st_mode) == 0o622
        let_go(held)


def test_what_is_sent_while_no_bruce_is_there_waits(holder: Holder, memory: Path) -> None:
    """One process after the other gets the same sockets, with the messages that came in between."""
    with holder:
        for number in range(3):
            send(memory / "bruce.sock", b"%d" % number)
            held = held_sockets(holder.folder, wait=False)
            assert held[0][1].recv(10) == b"%d" % number
            let_go(held)


def test_a_second_one_is_refused(holder: Holder, memory: Path) -> None:
    """One sentence and exit code 2 refuse it; the first is not disturbed."""
    with holder:
        second = Holder(memory / "bruce.toml", memory / "bruce.sock", memory / "second")
        second.start()
        assert second.await_end() == 2
        assert second.log.read_text().count("\n") == 1
        assert "another bruce hold-socket" in second.log.read_text()
        send(memory / "bruce.sock", b"x")
        held = held_sockets(holder.folder, wait=False)
        assert held[0][1].recv(10) == b"x"
        let_go(held)


def test_the_holder_of_another_user(holder: Holder) -> None:
    """A bruce that may not ask root's holder says so, instead of taking the paths from it."""

    def ask() -> str:
        return str(held_sockets(holder.folder, wait=False))

    with holder:
        holder.folder.parent.chmod(0o755)
        assert "BadSocket" in (said := as_nobody(ask))
        assert "as the user that bruce runs as" in said


@pytest.mark.sample(one_of=2)
@pytest.mark.parametrize("plant", ["folder", "file", "link", "link to ours"])
def test_a_folder_that_another_user_planted(holder: Holder, plant: str) -> None:
    """No bruce asks there, though a socket answers; no holder makes use of it, and says what to do."""
    holder.folder.parent.chmod(0o777)
    elsewhere = holder.folder.with_name("elsewhere")

    def make() -> str:
        folder = holder.folder if plant == "folder" else elsewhere
        folder.mkdir(0o700)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.bind(str(folder / "socket"))
        made.listen()
        # It lives on in a process that ends with this test's.
        if not os.fork():
            os.closerange(0, made.fileno())
            os.closerange(made.fileno() + 1, 1 << 16)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(PATIENCE_S))
            connection, _ = made.accept()
            socket.send_fds(connection, [b"0 "], [made.fileno()])
            os._exit(0)
        return "planted"

    def name() -> str:
        if plant == "file":
            holder.folder.touch()
        elif plant != "folder":
            holder.folder.symlink_to(elsewhere)
        return "planted"

    if plant != "file":
        assert as_user(0 if plant == "link to ours" else NOBODY, make) == "planted"
    assert as_nobody(name) == "planted"
    assert held_sockets(holder.folder, wait=False) == []
    holder.start()
    assert holder.await_end() == 2
    assert str(holder.folder) in (said := holder.log.read_text())
    assert said.count("\n") == 1


def test_one_that_was_killed_is_succeeded(holder: Holder, memory: Path) -> None:
    """Sockets that a SIGKILL leaves behind are taken over, once no process has them any more."""
    with holder:
        holder.end(signal.SIGKILL)
        assert held_sockets(holder.folder, wait=False) == []
        holder.start()
        holder.await_said(HELD)
        send(memory / "bruce.sock", b"x")
        held = held_sockets(holder.folder, wait=False)
        assert held[0][1].recv(10) == b"x"
        let_go(held)


def test_sockets_in_use_are_not_taken_away(holder: Holder, memory: Path) -> None:
    """A new holder waits while a bruce has those of the one before, and takes over at its end."""
    with holder:
        held = held_sockets(holder.folder, wait=False)
        holder.end(signal.SIGKILL)
        holder.start()
        holder.await_said("/bruce.sock is in use")
        # It looks ten times a second: it would have taken them by now.
        time.sleep(1)
        send(memory / "bruce.sock", b"x")
        assert held[0][1].recv(10) == b"x"
        assert held_sockets(holder.folder, wait=False) == []
        let_go(held)
        holder.await_said(HELD)
        let_go(held_sockets(holder.folder, wait=True))


def test_the_end_of_one_that_waits(holder: Holder, memory: Path) -> None:
    """SIGTERM ends a waiting holder in order, and takes nothing from the one that has the sockets."""
    with holder:
        held = held_sockets(holder.folder, wait=False)
        holder.end(signal.SIGKILL)
        holder.start()
        holder.await_said("/bruce.sock is in use")
        assert holder.end() == 0
        send(memory / "bruce.sock", b"x")
        assert held[0][1].recv(10) == b"x"
        let_go(held)
