"""The ingest worker: its loop turns, takes what there is at a stop, and leaves to others what is theirs."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from unittest import mock

import pytest

from ingest.sockets.inputs import DATAGRAM, Input, Inputs
from ingest.sockets.listening import open_socket
from ingest.worker import burst
from ingest.worker.burst import ROUNDS
from ingest.worker.worker import Blocked, IngestWorker, Receivers
from spool.format.wire import encode
from tests.ingest.intake import Intake, connect
from tests.ingest.worker.test_burst import sized


def test_bursts_grow_when_they_are_full(memory: Path) -> None:
    """After a burst that fills its slots the next ones may have as many datagrams as there are slots."""
    intake = Intake(memory, few=2)
    intake.worker._rounds = 1
    sent = [sized(5000, i) for i in range(11)]
    intake.queue(sent[:1])
    intake.take([])
    assert intake.worker.staging.burst == 2
    intake.queue(sent[1:])
    intake.take([])
    assert intake.worker.staging.burst == intake.slots
    assert intake.stored() == sent
    assert [len(frame.uids) for frame in intake.frames()] == [1, 2, 8]
    intake.close()


def test_a_worker_says_that_it_works_while_little_comes(intake: Intake) -> None:
    """Messages that never pause for long enough to end a wait: its loop turns all the same."""
    worker, beats, sent = intake.worker, list[int](), 0

    def send() -> None:
        nonlocal sent
        while len(beats) < 4 and sent < ROUNDS:
            intake.queue([sized(100)])
            sent += 1
            time.sleep(0.005)
        worker.stopping = True

    worker.beat = lambda: beats.append(sent)
    intake.spool.step()
    sender = threading.Thread(target=send)
    sender.start()
    worker.run()
    sender.join()
    assert len(beats) >= 4
    assert sent < ROUNDS


def test_a_worker_takes_turns(intake: Intake, memory: Path) -> None:
    """Messages to either socket are stored, and those in one that is gone, before all others."""
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
    intake.spool.step()
    stop_when_quiet(worker, 4)
    worker.run()
    stored = intake.stored()
    assert stored[0] == encode(b"t", b"gone")
    assert sorted(stored[1:]) == [encode(b"t", b"%d" % number) for number in range(3)]
    inputs.close()


def test_without_room_at_the_end_what_left_is_kept(
    intake: Intake, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full, and stopped: messages in an input that a reload took away are kept in staging, too."""
    inputs = Inputs([], [Input(DATAGRAM, memory / name) for name in "xz"])
    x, z = inputs.of(DATAGRAM)
    for name in "xz":
        with connect(memory / name) as sender:
            sender.send(encode(b"t", name.encode()))
    inputs.change([x.input, z.input], [x.input])
    worker = intake.start()
    worker.receivers.join(x.socket, last_reader=True)
    worker.receivers.leaving = inputs.leaving(DATAGRAM)
    intake.spool.step()
    with monkeypatch.context() as patched:
        patched.setattr(worker, "salvage", mock.Mock(side_effect=Blocked))
        worker.run()
    intake.start().salvage()
    assert sorted(intake.stored()) == [encode(b"t", b"x"), encode(b"t", b"z")]
    inputs.close()


@pytest.mark.parametrize("stays", ["ours", "another's", "giving way"])
def test_a_stop_takes_the_rest(intake: Intake, stays: str) -> None:
    """Messages in the queue are stored where no other process reads it; else they stay for that one."""
    worker = intake.worker
    if stays != "another's":
        worker.receivers.last_of = [intake.receiver]
    worker.giving_way = stays == "giving way"
    intake.queue([sized(100, number) for number in range(8)])
    intake.spool.step()
    worker.stopping = True
    worker.run()
    assert intake.stored() == ([sized(100, number) for number in range(8)] if stays == "ours" else [])
    if stays == "ours":
        with pytest.raises(OSError, match=r"Connection refused|Broken pipe"):
            intake.sender.send(b"too late")
    else:
        assert intake.receiver.recv(1000) == sized(100, 0)


def test_a_source_more_makes_it_poll(memory: Path) -> None:
    """With one socket the worker waits in recvmmsg; with two, neither has to wait for the other."""
    with open_socket(memory / "a") as one, open_socket(memory / "b") as other:
        receivers = Receivers(one, last_reader=True)
        assert not receivers.polls
        receivers.wait()
        receivers.join(other, last_reader=False)
        assert receivers.polls
        assert receivers._poll
        for name, source in (("a", one), ("b", other)):
            with connect(memory / name) as sender:
                sender.send(b"x")
            assert [fd for fd, _ in receivers._poll.poll(0)] == [source.fileno()]
            receivers.wait()
            assert source.recv(10) == b"x"
        assert (receivers.all, receivers.last_of) == ([one, other], [one])


def test_senders_are_refused_where_it_was_the_last_reader(memory: Path) -> None:
    """Messages that they sent before can be read; a socket that another process has goes on."""
    with open_socket(memory / "a") as one, open_socket(memory / "b") as other:
        receivers = Receivers(one, last_reader=False)
        receivers.join(other, last_reader=True)
        with connect(memory / "a") as to_one, connect(memory / "b") as to_other:
            for sender in (to_one, to_other):
                sender.send(b"before")
            receivers.shut_down()
            to_one.send(b"after")
            with pytest.raises(OSError, match=r"Connection refused|Broken pipe"):
                to_other.send(b"after")
        assert [one.recv(10), one.recv(10), other.recv(10)] == [b"before", b"after", b"before"]


def test_a_socket_that_fails_ends_the_worker(intake: Intake) -> None:
    """Its supervisor starts another; a wait that ends, or is interrupted, is no failure."""
    worker, found = intake.worker, [errno.EAGAIN, errno.EINTR, errno.EBADF]
    with mock.patch.object(burst, "receive", side_effect=found):
        assert not worker._round()
        assert worker._round()
        with pytest.raises(OSError, match="Bad file descriptor"):
            worker._round()


def stop_when_quiet(worker: IngestWorker, wanted: int) -> None:
    """Tell the worker to stop once it has waited for more, with this many messages stored."""
    wait, deadline = worker.receivers.wait, time.monotonic() + 60

    def look() -> None:
        assert time.monotonic() < deadline
        wait()
        worker.stopping = int(worker.writer.tail[1]) >= wanted

    worker.receivers.wait = look  # type: ignore[method-assign]
