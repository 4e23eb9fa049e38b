"""Several sockets of one kind, which come and go: nothing that was sent to any of them is lost."""

from __future__ import annotations

import errno
import select
import socket
import stat
from pathlib import Path
from unittest import mock

import pytest

from ingest.errors import BadSocket
from ingest.inputs import DATAGRAM, STREAM, TCP, Input, Inputs
from ingest.listener import finish
from ingest.worker import Blocked, IngestWorker
from spool.wire import encode
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
    # What stands in its queue is for the next worker, and it is kept while it does.
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
    """Two changes in a row, before any worker has looked: who waits to be accepted at it still is."""
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
    """Who comes to a port between the last look at it and its end was never connected."""
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
    """What was made for it is gone again."""
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


def test_a_worker_takes_turns(intake: Intake, memory: Path) -> None:
    """Messages to either socket are stored, and what stood in one that is gone, before all others."""
    inputs = Inputs([], [Input(DATAGRAM, memory / name) for name in "xyz"])
    x, y, z = inputs.of(DATAGRAM)
    gone = connect(memory / "z")
    gone.send(encode(b"t", b"gone"))
    gone.close()
    inputs.change([one.input for one in (x, y, z)], [x.input, y.input])
    senders = [intake.sender, connect(memory / "x"), connect(memory / "y")]
    for number, sender in enumerate(senders):
        sender.send(encode(b"t", b"%d" % number))
        sender.close()
    worker = intake.start()
    worker.receivers.join(x.socket, last_reader=True)
    worker.receivers.join(y.socket, last_reader=True)
    worker.receivers.leaving = inputs.leaving(DATAGRAM)
    intake.rig.step()
    stop_when_quiet(worker, 4)
    worker.run()
    stored = intake.stored()
    assert stored[0] == encode(b"t", b"gone")
    assert sorted(stored[1:]) == [encode(b"t", b"%d" % number) for number in range(3)]
    inputs.close()


def test_without_room_at_the_end_what_left_is_kept(
    intake: Intake, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full, and stopped: what stood in an input that a reload took away is kept in staging, too."""
    inputs = Inputs([], [Input(DATAGRAM, memory / name) for name in "xz"])
    x, z = inputs.of(DATAGRAM)
    for name in "xz":
        with connect(memory / name) as sender:
            sender.send(encode(b"t", name.encode()))
    inputs.change([x.input, z.input], [x.input])
    worker = intake.start()
    worker.receivers.join(x.socket, last_reader=True)
    worker.receivers.leaving = inputs.leaving(DATAGRAM)
    intake.rig.step()
    with monkeypatch.context() as patched:
        patched.setattr(worker, "salvage", mock.Mock(side_effect=Blocked))
        worker.run()
    intake.start().salvage()
    assert sorted(intake.stored()) == [encode(b"t", b"x"), encode(b"t", b"z")]
    inputs.close()


def stop_when_quiet(worker: IngestWorker, wanted: int) -> None:
    """Tell the worker to stop once it has waited for more, with so many messages stored."""
    wait = worker.receivers.wait

    def look() -> None:
        wait()
        worker.stopping = int(worker.writer.tail[1]) >= wanted

    worker.receivers.wait = look  # type: ignore[method-assign]


def test_the_guard_receives_from_all(intake: Intake, memory: Path) -> None:
    """While a store lasts, it takes from each socket; the worker stores it in the order of its banks."""
    from ingest.guard import Guard

    inputs = Inputs([], [Input(DATAGRAM, memory / name) for name in "xy"])
    fds = [intake.receiver.fileno(), *(door.socket.fileno() for door in inputs.of(DATAGRAM))]
    for name in ("socket", "x", "y"):
        sender = connect(memory / name)
        sender.send(encode(b"t", name.encode()))
        sender.close()
    guard = Guard(fds, intake.worker.staging, intake.worker.turn)
    assert guard.take_rest() == 3
    assert intake.restart() == 3
    assert sorted(intake.stored()) == sorted(encode(b"t", name) for name in (b"socket", b"x", b"y"))
    for door in inputs.of(DATAGRAM):
        with pytest.raises(BlockingIOError):
            door.socket.recv(1, socket.MSG_DONTWAIT)
    inputs.close()
