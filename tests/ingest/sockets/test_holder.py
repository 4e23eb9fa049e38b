"""The program that keeps sockets: whom it answers, what it leaves at its end, and what it is made of."""

from __future__ import annotations

import ast
import errno
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from ingest.errors import BadSocket
from ingest.sockets import holder as module
from ingest.sockets.holder import Kept, file_at, hand_over, is_live, probe
from ingest.sockets.holding import held_sockets
from ingest.sockets.listening import make_way
from tests.daemon import PATIENCE_S
from tests.holder import Holder
from tests.ingest.sockets.test_holding import as_nobody, let_go, send


def test_other_users_are_handed_nothing(holder: Holder) -> None:
    """The folder keeps them out; and should it be open, the holder checks the uid."""

    def ask() -> str:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.settimeout(PATIENCE_S)
            one.connect(str(holder.folder / "socket"))
            return f"handed {len(socket.recv_fds(one, 100, 10)[1])}"

    with holder:
        holder.folder.parent.chmod(0o755)
        assert as_nobody(ask).startswith("PermissionError")
        holder.folder.chmod(0o777)
        (holder.folder / "socket").chmod(0o777)
        assert as_nobody(ask) == "handed 0"
        holder.folder.chmod(0o700)
        let_go(held_sockets(holder.folder, wait=False))


def test_the_end_in_order(holder: Holder, memory: Path) -> None:
    """SIGTERM removes all that was made; unread messages are named; SIGHUP does nothing."""
    with holder:
        os.kill(holder.pid, signal.SIGHUP)
        send(memory / "bruce.sock", b"x")
        assert holder.end() == 0
        assert "bruce.sock: what waited in it is gone" in holder.log.read_text()
        assert "own.sock:" not in holder.log.read_text()
        assert {path.name for path in memory.iterdir()} == {"bruce.toml", "log"}


def test_what_a_bruce_uses_stays(holder: Holder, memory: Path) -> None:
    """The end of the holder takes no path from a bruce that lives."""
    with holder:
        held = held_sockets(holder.folder, wait=False)
        send(memory / "bruce.sock", b"x")
        assert holder.end() == 0
        send(memory / "bruce.sock", b"y")
        assert [held[0][1].recv(10) for _ in "xy"] == [b"x", b"y"]
        assert "gone" not in holder.log.read_text()
        let_go(held)


def test_a_path_that_was_taken_away(holder: Holder, memory: Path) -> None:
    """Sockets that no sender can reach are not handed over: the holder ends, and says why."""
    with holder:
        (memory / "own.sock").unlink()
        with pytest.raises(BadSocket, match="its last words say why"):
            held_sockets(holder.folder, wait=False)
        assert holder.await_end() == 1
        assert "own.sock is another process's now, or gone" in holder.log.read_text()
        assert {path.name for path in memory.iterdir()} == {"bruce.toml", "log"}


def test_it_runs_nothing_of_ours(holder: Holder) -> None:
    """Once it holds: no library but Python's own, and one thread."""
    with holder:
        let_go(held_sockets(holder.folder, wait=False))
        mapped = Path(f"/proc/{holder.pid}/maps").read_text()
        assert "site-packages" not in mapped
        assert "Threads:\t1\n" in Path(f"/proc/{holder.pid}/status").read_text()


def listening(path: Path, kind: socket.SocketKind) -> socket.socket:
    """A socket of a process that lives."""
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(str(path))
    if kind == socket.SOCK_STREAM:
        made.listen()
    return made


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_socket_is_asked_for_without_notice(memory: Path, kind: socket.SocketKind) -> None:
    """A live one differs from the file that a dead process left, and nothing comes to it by that."""
    path = memory / "socket"
    assert (probe(str(path)), is_live(str(path))) == (errno.ENOENT, False)
    with listening(path, kind) as live:
        live.setblocking(False)
        assert is_live(str(path))
        with pytest.raises(BlockingIOError):
            live.accept() if kind == socket.SOCK_STREAM else live.recv(1)
    assert (probe(str(path)), is_live(str(path))) == (errno.ECONNREFUSED, False)


def test_the_question_never_waits(memory: Path) -> None:
    """Nor at somebody's socket of the type that asks, whose backlog is full."""
    path = memory / "socket"
    with listening(path, socket.SOCK_SEQPACKET) as live:
        live.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
            first.connect(str(path))
            assert probe(str(path)) == errno.EAGAIN
            with pytest.raises(BadSocket, match="another process receives at"):
                make_way(path)
            assert path.exists()


def test_a_path_that_leads_elsewhere_is_not_ours(memory: Path) -> None:
    """A file that another process put there, and none at all; a TCP port has no path to lose."""
    path = memory / "socket"
    with listening(path, socket.SOCK_DGRAM) as ours:
        kept = Kept(ours, "", str(path), file_at(str(path)))
        assert kept.is_reachable
        (memory / "other").touch()
        (memory / "other").rename(path)
        assert not kept.is_reachable
        path.unlink()
        assert not kept.is_reachable
        assert Kept(ours, "", None, file_at(None)).is_reachable
        assert not Kept(ours, "", str(path), file_at(str(path))).is_reachable


def test_each_message_says_how_many_follow(memory: Path) -> None:
    """And the name; the descriptor that it has is the socket, which the holder keeps, too."""
    inside, outside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        inside,
        outside,
        listening(memory / "a", socket.SOCK_DGRAM) as a,
        listening(memory / "b", socket.SOCK_DGRAM) as b,
    ):
        hand_over(outside, [Kept(a, "", None, None), Kept(b, "ack", None, None)])
        for told, place in ((b"1 ", "a"), (b"0 ack", "b")):
            data, (fd,), _, _ = socket.recv_fds(inside, 64, 1)
            with socket.socket(fileno=fd) as found:
                assert (data, found.getsockname()) == (told, str(memory / place))
        assert a.fileno() >= 0


def test_no_fault_of_ours_ends_it() -> None:
    """Its source imports nothing but Python's own library: `python -I -S` finds nothing else."""
    nodes = list(ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} - sys.stdlib_module_names == set()
