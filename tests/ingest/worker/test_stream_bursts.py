"""Runs of streams in the log: beside datagrams, through a crash at each step, without room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ingest.buffers import connection_buffer, connection_buffers, staging
from ingest.buffers.connection_buffers import ConnectionBuffers, read_connection_buffers
from ingest.worker import burst
from ingest.worker.guard import Guard, Handoff
from ingest.worker.worker import IngestWorker
from spool.format.segment_format import body_room, largest_message
from spool.format.wire import Reason, encode
from spool.read.overview import take_totals
from spool.shared.ledger import read_ledger
from spool.shared.state import Field
from tests.ingest.intake import SEGMENT_BYTES, Intake
from tests.ingest.stream_clients import LIMIT, Kill, Killed, Streams

STEPS = [
    (ConnectionBuffers, "gather"),
    (ConnectionBuffers, "list_messages"),
    (ConnectionBuffers, "settle"),
    (connection_buffer, "take"),
    (burst, "store"),
    (staging, "reset"),
    (staging, "store_word"),
    (connection_buffers, "store_word"),
    (Handoff, "begin_storing"),
    (Handoff, "finish_storing"),
]
"""All that changes what a successor of the ingest worker finds."""
SMALL, BAD = 256 << 10, 400


class Both(Streams):
    """A stream worker, and the ingest worker that stores what it offers."""

    def __init__(self, directory: Path, limit: int = LIMIT, **options: int) -> None:
        super().__init__(directory, limit, room=body_room(options.get("segment_bytes", SEGMENT_BYTES)))
        self.intake = Intake(directory, **options)
        self.start(self.intake.worker)

    def start(self, worker: IngestWorker) -> None:
        """Let an ingest worker begin."""
        worker.serve(self.buffers)
        worker.salvage()

    def take(self) -> int:
        """A round of the ingest worker; 0 when it found nothing."""
        self.intake.spool.step()
        return int(self.intake.worker._round()) + int(self.intake.worker._round_of_runs(self.buffers))

    def restart(self) -> None:
        """The ingest worker is dead; the next one takes over."""
        self.start(self.intake.start())

    def close(self) -> None:
        super().close()
        self.intake.close()


@pytest.fixture
def both(memory: Path) -> Iterator[Both]:
    """Both in this process."""
    made = Both(memory)
    yield made
    made.close()


def message(kind: str, number: int, size: int = 100) -> bytes:
    """A message that says where it came from."""
    return encode(kind.encode(), b"%*d" % (size, number), timestamp=number)


def test_small_segments(memory: Path) -> None:
    """Runs of many connections at once have room in the smallest segment: nothing is given up.

    Each offers a message nearly as large as a segment, behind many that each need a row to be refused.
    """
    both = Both(memory, largest_message(SMALL), segment_bytes=SMALL)
    senders = [both.connect() for _ in range(4)]
    large = [message("large", number, largest_message(SMALL) - 100) for number in range(len(senders))]
    left = [memoryview(b"\0\0\0\5x" * BAD + one) for one in large]
    for sender in senders:
        sender.setblocking(False)
    while any(left):
        before = sum(map(len, left))
        for number, sender in enumerate(senders):
            with suppress(BlockingIOError):
                left[number] = left[number][sender.send(left[number]) :]
        both.step()
        if sum(map(len, left)) == before:
            both.take()
    settle(both)
    assert sorted(both.intake.stored()) == sorted(large)
    assert both.intake.refused() == {"short": len(senders) * BAD}
    both.close()


@pytest.mark.sample(one_of=2)
@pytest.mark.crash
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_each_step(memory: Path, *, after: bool) -> None:
    """Whichever step the ingest worker dies before or after, each message is stored and counted once."""
    for at in range(1, 1000):
        directory = memory / f"{after}-{at}"
        directory.mkdir()
        both, kill = Both(directory), Kill(at, after=after)
        sent = [message("stream", number) for number in range(6)]
        posted = [message("datagram", number) for number in range(6)]
        sender, other = both.connect(), both.connect()
        both.step()
        with pytest.MonkeyPatch.context() as patch:
            for home, name in STEPS:
                patch.setattr(home, name, kill.wrap(getattr(home, name)))
            for part in range(3):
                sender.sendall(b"".join(sent[2 * part :][:2]))
                other.sendall(message("other", part))
                both.intake.queue(posted[2 * part :][:2])
                settle(both)
            other.sendall(bytes(4))
            settle(both)
        stored = both.intake.stored()
        for kind, all_of_it in (("stream", sent), ("datagram", posted)):
            assert [m for m in stored if kind.encode() in m] == all_of_it
        assert len(stored) == 6 + 6 + 3
        assert both.intake.refused() == {"bad_size": 1}
        assert not read_connection_buffers(both.buffers_path)
        both.close()
        if kill.left > 0:
            assert at > 30
            return
    pytest.fail("it never ends")


def settle(both: Both) -> None:
    """As Streams.settle, with a successor for a killed worker."""
    while True:
        try:
            both.settle()
        except Killed:
            both.restart()
        else:
            return


def test_a_message_of_16_mib(memory: Path) -> None:
    """It is stored whole, and so is what comes before and behind it."""
    made = Both(memory, limit=16 << 20, segment_bytes=32 << 20, max_bytes=256 << 20)
    sent = [message("t", 0), encode(b"t", bytes(range(256)) * ((16 << 20) // 256 - 1)), message("t", 1)]
    sender, data = made.connect(), b"".join(sent)
    while data:
        data = data[sender.send(data[:100_000]) :]
        made.settle()
    made.settle()
    assert made.intake.stored() == sent
    # Its memory was given back.
    assert made.buffers_path.stat().st_blocks * 512 < 4 << 20
    made.close()


def test_runs_wait_for_the_guard(both: Both) -> None:
    """Datagrams that the guard received while a burst of runs was being stored are salvaged behind it."""
    both.connect().sendall(message("stream", 0))
    both.step()
    both.step()
    worker = both.intake.worker
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(burst, "store", Kill(1, after=False).wrap(burst.store))
        with pytest.raises(Killed):
            worker._round_of_runs(both.buffers)
    # The guard, as it does while the worker stores: the next burst goes into the reserve.
    staging, noted = worker.staging, both.buffers.noted
    assert staging.armed == noted
    both.intake.queue([message("datagram", 0)])
    guard = Guard([both.intake.receiver.fileno()], staging, Handoff())
    assert guard.take_rest() == 1
    both.restart()
    assert both.intake.stored() == [message("stream", 0), message("datagram", 0)]


def test_the_totals_count_what_waits(both: Both) -> None:
    """A run that is offered and not stored counts as backlog, before and after its burst is noted."""

    def backlog() -> int:
        return take_totals(
            both.intake.spool.layout, lambda: read_connection_buffers(both.buffers_path)
        ).backlog

    both.connect().sendall(message("t", 0) + message("t", 1))
    both.step()
    both.step()
    assert backlog() == 2
    for at in (1, 2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(burst, "store", Kill(1, after=at == 2).wrap(burst.store))
            with pytest.raises(Killed):
                both.intake.worker._round_of_runs(both.buffers)
        assert backlog() == 2
    both.restart()
    assert backlog() == 2
    assert len(both.intake.stored()) == 2


def test_without_room(both: Both) -> None:
    """Messages that come while the spool is full are in the ledger, by topic or by their own reason."""
    words = both.intake.spool.shared.words
    words[Field.SPARE], words[Field.FULL] = 0, 1
    both.connect().sendall(message("t", 0) + message("t", 1) + b"\0\0\0\4")
    both.step()
    both.step()
    assert both.intake.worker._round_of_runs(both.buffers)
    found = {(row.topic, row.reason): row.count for row in read_ledger(both.intake.spool.layout.ledger)}
    assert found == {(b"t", Reason.SPOOL_FULL): 2, (b"", Reason.SHORT): 1}
    assert not read_connection_buffers(both.buffers_path)
