"""Sockets of one kind, made here or handed over: no message is lost, and wrong sockets are refused."""

from __future__ import annotations

import errno
import json
import select
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ingest.errors import BadSocket
from ingest.sockets.inputs import (
    ACK,
    DATAGRAM,
    MOST_LOST,
    STREAM,
    TCP,
    Input,
    Inputs,
    activated_doors,
    doors_of,
)
from ingest.sockets.listening import finish, open_socket
from spool.format.wire import encode
from tests.daemon import free_port
from tests.ingest.intake import Intake, connect


def mode_of(path: Path) -> int:
    """As chmod takes it."""
    return stat.S_IMODE(path.stat().st_mode)


def test_each_has_its_mode(memory: Path) -> None:
    """And is removed at the end."""
    wanted = [Input(DATAGRAM, memory / "a", 0o600), Input(STREAM, memory / "b", 0o620), Input(TCP, 0)]
    inputs = Inputs([], wanted)
    assert [mode_of(memory / "a"), mode_of(memory / "b")] == [0o600, 0o620]
    assert len(inputs.of(TCP)) == 1
    inputs.close()
    assert list(memory.iterdir()) == []


def test_a_change_touches_no_others(memory: Path) -> None:
    """One comes, one goes, one gets another mode; the fourth keeps the socket that it has."""
    a, b, c = (Input(DATAGRAM, memory / name, 0o600) for name in "abc")
    stream = Input(STREAM, memory / "s")
    inputs = Inputs([], [a, b, stream])
    kept = inputs.of(DATAGRAM)[0].socket
    again = Input(DATAGRAM, memory / "a", 0o666)
    sender = connect(memory / "b")
    sender.send(b"late")
    assert inputs.change([a, b, stream], [again, c, stream]) == {DATAGRAM}
    assert inputs.of(DATAGRAM)[0].socket is kept
    assert mode_of(memory / "a") == 0o666
    assert not (memory / "b").exists()
    with pytest.raises(BrokenPipeError):
        sender.send(b"later")
    sender.close()
    # Messages in its queue are for the next worker, and the input is kept while it has some.
    (left,) = inputs.leaving(DATAGRAM)
    assert inputs.change([again, c, stream], [again, stream]) == {DATAGRAM}
    assert left in inputs.leaving(DATAGRAM)
    assert left.recv(10) == b"late"
    assert inputs.change([again, stream], [again]) == {STREAM}
    assert inputs.leaving(DATAGRAM) == []
    assert inputs.change([again], [again]) == set()
    inputs.close()


@pytest.mark.parametrize("kind", [STREAM, TCP])
def test_a_listener_is_kept_until_it_is_finished(memory: Path, kind: str) -> None:
    """Two changes in a row, before any worker has looked: a client waiting to be accepted at it still is."""
    stays, goes = Input(STREAM, memory / "a"), Input(kind, memory / "b" if kind == STREAM else free_port())
    inputs = Inputs([], [stays, goes])
    listener = next(door.socket for door in inputs.of(kind) if door.input == goes)
    sender = socket.socket(listener.family)
    sender.connect(listener.getsockname())
    sender.sendall(b"waits")
    assert inputs.change([stays, goes], [stays]) == {kind}
    for _ in range(3):
        assert inputs.change([stays], [stays]) == set()
        assert inputs.leaving(kind) == [listener]
    accepted = listener.accept()[0]
    assert accepted.recv(10) == b"waits"
    finish(listener)
    assert inputs.change([stays], [stays]) == set()
    assert inputs.leaving(kind) == []
    for one in (sender, accepted):
        one.close()
    inputs.close()


def test_by_tcp_nobody_is_reset(memory: Path) -> None:
    """A client that comes to a port between the last look at it and its end was never connected."""
    inputs = Inputs([], [Input(DATAGRAM, memory / "a"), Input(TCP, free_port())])
    (door,) = inputs.of(TCP)
    inputs.change([door.input], [])
    late = socket.socket()
    late.setblocking(False)
    assert late.connect_ex(door.socket.getsockname()) == errno.EINPROGRESS
    finish(door.socket)
    poll = select.poll()
    poll.register(late, select.POLLOUT)
    assert poll.poll(60_000)
    assert late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
    late.close()
    inputs.close()


def test_a_change_that_cannot_be_changes_nothing(memory: Path) -> None:
    """The sockets made for it are gone again."""
    a, b = Input(DATAGRAM, memory / "a"), Input(DATAGRAM, memory / "b")
    inputs = Inputs([], [a])
    (memory / "file").write_text("")
    with pytest.raises(BadSocket, match="is no socket"):
        inputs.change([a], [b, Input(STREAM, memory / "file")])
    assert not (memory / "b").exists()
    assert [door.input for door in inputs.of(DATAGRAM)] == [a]
    sender = connect(memory / "a")
    sender.send(b"x")
    sender.close()
    inputs.close()


@pytest.mark.parametrize("goes", ["file", "folder"])
def test_a_lost_socket_is_made_again(memory: Path, goes: str) -> None:
    """A cleaner took the path, or the folder: new programs reach bruce, and connected ones still do."""
    folder = memory / "run"
    wanted = [Input(DATAGRAM, folder / "a", 0o600), Input(STREAM, folder / "s"), Input(ACK, folder / "ack")]
    inputs = Inputs([], wanted)
    assert inputs.mend() == (set(), [])
    connected = connect(folder / "a")
    connected.send(b"before")
    for name in ("a", "s", "ack"):
        (folder / name).unlink()
    if goes == "folder":
        folder.rmdir()
    assert inputs.mend() == ({DATAGRAM, STREAM, ACK}, [])
    assert inputs.mend() == (set(), [])
    assert mode_of(folder / "a") == 0o600
    made, lost = (door.socket for door in inputs.of(DATAGRAM))
    with connect(folder / "a") as sender:
        sender.send(b"new")
    connected.send(b"after")
    assert made.recv(10) == b"new"
    assert [lost.recv(10), lost.recv(10)] == [b"before", b"after"]
    assert len(inputs.of(STREAM)) == len(inputs.of(ACK)) == 1
    # A reload that takes the input away refuses those that were connected to the lost socket, too.
    connected.send(b"last")
    other = Input(DATAGRAM, folder / "b")
    assert inputs.change(wanted, [other, *wanted[1:]]) == {DATAGRAM}
    with pytest.raises(BrokenPipeError):
        connected.send(b"refused")
    assert lost in inputs.leaving(DATAGRAM)
    connected.close()
    inputs.close()
    assert list(folder.iterdir()) == []


def test_lost_sockets_are_bounded(memory: Path) -> None:
    """Beyond MOST_LOST the oldest refuses its senders, and its queue is for the next worker."""
    inputs = Inputs([], [Input(DATAGRAM, memory / "a")])
    senders = []
    for _ in range(MOST_LOST + 2):
        senders.append(connect(memory / "a"))
        senders[-1].send(b"waits")
        (memory / "a").unlink()
        inputs.mend()
    for sender in senders[:2]:
        with pytest.raises(BrokenPipeError):
            sender.send(b"x")
    senders[2].send(b"x")
    assert [one.recv(10) for one in inputs.leaving(DATAGRAM)] == [b"waits", b"waits"]
    assert len(inputs.of(DATAGRAM)) == 1 + MOST_LOST
    for sender in senders:
        sender.close()
    inputs.close()


def test_a_path_that_another_process_took(memory: Path) -> None:
    """It is not taken back while somebody answers there, nor removed at the end; senders reach either."""
    inputs = Inputs([], [Input(DATAGRAM, memory / "a")])
    connected = connect(memory / "a")
    (memory / "a").unlink()
    other = open_socket(memory / "a")
    kinds, (sentence,) = inputs.mend()
    assert kinds == set()
    assert f"another process receives at {memory / 'a'}" in sentence
    connected.send(b"ours")
    assert inputs.of(DATAGRAM)[0].socket.recv(10) == b"ours"
    connected.close()
    inputs.close()
    with connect(memory / "a") as sender:
        sender.send(b"theirs")
    assert other.recv(10) == b"theirs"
    other.close()
    inputs = Inputs([], [Input(DATAGRAM, memory / "a")])
    assert inputs.mend() == (set(), [])
    inputs.close()


def test_a_lost_socket_that_was_handed_over(memory: Path) -> None:
    """It is not ours to make: one sentence says what to do. One that was never seen there is not judged."""
    made = [unix(memory / name, socket.SOCK_DGRAM) for name in ("seen", "unseen")]
    (memory / "unseen").unlink()
    inputs = Inputs(doors_of(("", one) for one in made), [])
    assert inputs.mend() == (set(), [])
    (memory / "seen").unlink()
    kinds, (sentence,) = inputs.mend()
    assert kinds == set()
    assert sentence.startswith(f"programs that open {memory / 'seen'} do not reach bruce: ")
    assert "restart bruce.socket or bruce hold-socket" in sentence
    inputs.close()


def test_the_guard_receives_from_all(intake: Intake, memory: Path) -> None:
    """While a store lasts, it takes from each socket; the worker stores it in the order of its buffers."""
    from ingest.worker.guard import Guard

    inputs = Inputs([], [Input(DATAGRAM, memory / name) for name in "xy"])
    fds = [intake.receiver.fileno(), *(door.socket.fileno() for door in inputs.of(DATAGRAM))]
    for name in ("socket", "x", "y"):
        sender = connect(memory / name)
        sender.send(encode(b"t", name.encode()))
        sender.close()
    guard = Guard(fds, intake.worker.staging, intake.worker.handoff)
    assert guard.take_rest() == 3
    assert intake.restart() == 3
    assert sorted(intake.stored()) == sorted(encode(b"t", name) for name in (b"socket", b"x", b"y"))
    for door in inputs.of(DATAGRAM):
        with pytest.raises(BlockingIOError):
            door.socket.recv(1, socket.MSG_DONTWAIT)
    inputs.close()


ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import json, os, sys
fds = [int(fd) for fd in sys.argv[2:]]
kept = [os.dup(fd) for fd in fds]
for number, fd in enumerate(kept):
    os.dup2(fd, 3 + number)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=sys.argv[1])
from ingest.sockets.inputs import activated_doors
from ingest.errors import BadSocket
try:
    doors = activated_doors()
except BadSocket as error:
    print(json.dumps(str(error)))
else:
    told = [[d.input.kind, str(d.input.place), os.get_inheritable(d.socket.fileno())] for d in doors]
    read = [d.socket.recv(20).decode() for d in doors if d.input.kind == "datagram"]
    print(json.dumps([told, read]))
"""


def hand_over(sockets: list[socket.socket], names: str = "") -> object:
    """The inputs as found by a process that gets these sockets."""
    fds = [one.fileno() for one in sockets]
    # From 3 on there must be room for them.
    command = [sys.executable, "-c", PROGRAM, names, *map(str, fds)]
    done = subprocess.run(command, pass_fds=fds, cwd=ROOT, capture_output=True, check=True, timeout=60)
    return json.loads(done.stdout)


def unix(path: Path, kind: socket.SocketKind, *, listening: bool = True) -> socket.socket:
    """As systemd makes it."""
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(str(path))
    if kind == socket.SOCK_STREAM and listening:
        made.listen()
    return made


def tcp(host: str = "127.0.0.1") -> socket.socket:
    """The same."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.bind((host, 0))
    made.listen()
    return made


def test_without_a_service_manager_there_is_none() -> None:
    """Variables that are missing, or meant for another process, hand nothing over."""
    assert activated_doors({}) == []
    assert activated_doors({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) == []


def test_each_kind_is_told(memory: Path) -> None:
    """Datagrams, streams, TCP, by its name the socket for acknowledgements; what waits in them is there."""
    made = [
        unix(memory / "stream", socket.SOCK_STREAM),
        unix(memory / "one", socket.SOCK_DGRAM),
        unix(memory / "acked", socket.SOCK_DGRAM),
        tcp(),
        tcp("::1"),
        unix(memory / "two", socket.SOCK_DGRAM),
    ]
    for name in ("one", "two"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(f"for {name}".encode(), str(memory / name))
    told, read = hand_over(made, "bruce:bruce:ack:bruce:bruce")  # type: ignore[misc]
    assert told == [
        ["stream", str(memory / "stream"), False],
        ["datagram", str(memory / "one"), False],
        ["ack", str(memory / "acked"), False],
        ["tcp", str(made[3].getsockname()[1]), False],
        ["tcp", str(made[4].getsockname()[1]), False],
        ["datagram", str(memory / "two"), False],
    ]
    assert read == ["for one", "for two"]
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: tcp("0.0.0.0"), "other hosts reach"),
        (lambda path: unix(path / "s", socket.SOCK_STREAM, listening=False), "neither UNIX datagrams nor"),
        (lambda path: unix(path / "s", socket.SOCK_SEQPACKET), "neither UNIX datagrams nor"),
    ],
    ids=["to other hosts", "a connection", "of another kind"],
)
def test_what_can_be_no_input(memory: Path, make: Callable[[Path], socket.socket], said: str) -> None:
    """One sentence names the descriptor handed over, and what to write in the unit."""
    made = make(memory)
    assert said in str(hand_over([made]))
    made.close()
