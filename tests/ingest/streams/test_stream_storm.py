"""SIGKILL at any moment, while programs write to streams: nothing lost or doubled, every count exact."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.streams.users import ROOM
from spool.shared.state import Field
from tests.ingest.intake import connect
from tests.ingest.processes import PATIENCE_S, Processes, await_end, fork, message
from tests.ingest.worker.test_storm import by_sender

LIMIT = 1 << 20
SENDERS = 3
"""One by UNIX stream, one by TCP, one by datagrams."""
COUNT, KILLS, SPOILED = 1500, 30, 12


@pytest.fixture
def processes(memory: Path) -> Iterator[Processes]:
    """An intake with a stream worker."""
    made = Processes(memory, stream_limit=LIMIT, segment_bytes=4 << 20, max_bytes=1 << 30)
    yield made
    made.close()


def pieces(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """The same bytes, split anywhere."""
    while data:
        size = chance.choice((1, 3, 50, 1000, ROOM, 40_000, 300_000))
        yield data[:size]
        data = data[size:]


def write(stream: socket.socket, who: int, over: Path, out: Path) -> None:
    """Write messages back to back until it is over; `out` says how many."""
    chance, number, waiting = random.Random(who), 0, b""
    while number < COUNT or number % 50 or not over.exists():
        large = chance.random() < 0.02
        waiting += message(
            who, number, chance.randrange(2048, LIMIT - 64) if large else chance.randrange(16, 400)
        )
        number += 1
        if large or chance.random() < 0.2:
            for piece in pieces(waiting, chance):
                stream.sendall(piece)
            waiting = b""
    stream.sendall(waiting)
    out.write_text(str(number))


def post(path: Path, who: int, over: Path, out: Path) -> None:
    """The same by datagrams, beside the streams."""
    sender, number = connect(path), 0
    while number < COUNT or not over.exists():
        sender.send(message(who, number, 64))
        number += 1
    out.write_text(str(number))


def stream_to(address: str | tuple[str, int]) -> socket.socket:
    """A connection."""
    stream = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    stream.connect(address)
    return stream


def await_true(what: str, ready: object) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not ready():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


@pytest.mark.long
@pytest.mark.crash
def test_nothing_is_lost_doubled_or_altered(processes: Processes) -> None:
    """Every message of every stream is stored once, whole, in its order; spoiled streams are counted each."""
    outs = [processes.directory / f"sent-{who}" for who in range(SENDERS)]
    over, chance = processes.directory / "over", random.Random(7)
    unix, tcp = stream_to(str(processes.stream_path)), stream_to(processes.tcp)
    spoilers = [stream_to(str(processes.stream_path)) for _ in range(SPOILED)]
    good = message(0, 0, 32)
    # Accepted and held before the first kill: each has had a message stored.
    for stream in (unix, tcp, *spoilers):
        stream.sendall(good[:4] + b"\x01\x07" + good[6:])
    written = processes.shared.words
    await_true("connections are not read", lambda: sum(processes.discarded().values()) == SPOILED + 2)
    processes.store.attend()
    pids = [
        fork(lambda: write(unix, 0, over, outs[0])),
        fork(lambda: write(tcp, 1, over, outs[1])),
        fork(lambda: post(processes.path, 2, over, outs[2])),
    ]
    unix.close()
    tcp.close()
    kills, deadline = 0, time.monotonic() + PATIENCE_S
    while not all(out.exists() for out in outs):
        assert time.monotonic() < deadline, "the senders do not get on"
        time.sleep(chance.random() * 0.04)
        assert processes.kill(("stream", "ingest")[kills % 2]) == -9
        if kills % 5 == 0:
            assert processes.kill("keeper") == -9
        if kills % 2 and kills // 2 < SPOILED:
            spoiler = spoilers[kills // 2]
            spoiler.sendall((good[:-1], bytes(4) + b"rest", (LIMIT + 5).to_bytes(4, "big"))[kills // 2 % 3])
            spoiler.close()
        kills += 1
        if kills >= max(KILLS, 2 * SPOILED):
            over.touch()
    assert [await_end(pid) for pid in pids] == [0] * SENDERS
    assert processes.stop() == [0, 0, 0]
    assert processes.has_exact_sizes()
    sent = [int(out.read_text()) for out in outs]
    for who, found in by_sender(processes).items():
        assert found == list(range(sent[who]))
    third = SPOILED // 3
    assert processes.discarded() == Counter(
        api_key=SPOILED + 2, unclean=third, bad_size=third, too_long=third
    )
    assert int(written[Field.WRITTEN_SEQUENCE]) == sum(sent)
