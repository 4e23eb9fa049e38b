"""SIGKILL at any moment, while programs send: nothing lost, doubled or altered, and every count exact."""

from __future__ import annotations

import ast
import os
import random
import select
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from spool.shared.state import Field
from tests.daemon import halt
from tests.ingest.intake import connect
from tests.ingest.processes import PATIENCE_S, Processes, await_end, fork, message, send
from tests.spool import plain

SENDERS = 3
COUNT, KILLS = 2000, 25
"""Datagrams a sender, and kills of the worker, at least."""


@pytest.fixture
def processes(request: pytest.FixtureRequest, memory: Path) -> Iterator[Processes]:
    """A running intake; its options are the parameter."""
    made = Processes(memory, **request.param)
    yield made
    made.close()


def storm(processes: Processes, seed: int) -> Counter[str]:
    """Kill while senders send; what they counted."""
    chance, kills = random.Random(seed), 0
    outs = [processes.directory / f"sent-{who}" for who in range(SENDERS)]
    over = processes.directory / "over"

    def enough(count: int) -> bool:
        return count >= COUNT and count % 100 == 0 and over.exists()

    pids = [
        fork(lambda who=who, out=out: send(processes.path, who, out, enough)) for who, out in enumerate(outs)
    ]
    deadline = time.monotonic() + PATIENCE_S
    while not all(out.exists() for out in outs):
        assert time.monotonic() < deadline, "the senders do not get on"
        time.sleep(chance.random() * 0.04)
        assert processes.kill("ingest") == -9
        kills += 1
        if kills % 5 == 0:
            assert processes.kill("keeper") == -9
        if kills == KILLS:
            over.touch()
    assert [await_end(pid) for pid in pids] == [0] * SENDERS
    counted: Counter[str] = Counter()
    for out in outs:
        counted.update(ast.literal_eval(out.read_text()))
    assert processes.stop() == [0, 0]
    return counted


def by_sender(processes: Processes) -> dict[int, list[int]]:
    """The numbers of the stored messages of each sender, in the order of the log; each checked whole."""
    found: dict[int, list[int]] = {who: [] for who in range(SENDERS)}
    for segment in processes.segments():
        for _, data in segment.messages():
            parsed = plain.parse_datagram(data)
            assert isinstance(parsed, plain.Message)
            who, number = int(parsed.topic.removeprefix(b"from-")), parsed.timestamp
            size = int.from_bytes(parsed.value[12:16], "big")
            assert data == message(who, number, size)
            found[who].append(number)
    return found


@pytest.mark.crash
@pytest.mark.parametrize("processes", [{"segment_bytes": 2 << 20, "max_bytes": 1 << 30}], indirect=True)
def test_nothing_is_lost_doubled_altered_or_reordered(processes: Processes) -> None:
    """Every message of every sender is stored once, whole, in its order; discards are exact by reason."""
    sent = storm(processes, 1)
    found = by_sender(processes)
    assert {who: numbers == list(range(len(numbers))) for who, numbers in found.items()} == dict.fromkeys(
        range(SENDERS), True
    )
    assert sum(map(len, found.values())) == sent.pop("right")
    assert processes.discarded() == sent
    assert processes.has_exact_sizes()
    chain = [f.sequence for s in processes.segments() for f in s.frames]
    assert chain == sorted(chain)


@pytest.mark.crash
@pytest.mark.parametrize("processes", [{"segment_bytes": 2 << 20, "max_bytes": 8 << 20}], indirect=True)
def test_a_full_spool_counts_what_it_discards_exactly(processes: Processes) -> None:
    """The spool runs full under the storm: stored and discarded are what was sent, by topic and reason."""
    sent = storm(processes, 2)
    found = by_sender(processes)
    assert all(numbers == sorted(set(numbers)) for numbers in found.values())
    ledger = processes.ledger_by_topic()
    for who, numbers in found.items():
        right = ast.literal_eval((processes.directory / f"sent-{who}").read_text())["right"]
        assert len(numbers) + ledger[b"from-%d" % who] == right
    stored = sum(map(len, found.values()))
    discarded = processes.discarded()
    assert discarded.pop("spool_full") == sum(ledger.values()) == sent.pop("right") - stored
    assert sum(ledger.values()) > 0
    assert processes.has_exact_sizes()
    assert discarded == sent


@pytest.mark.long
@pytest.mark.parametrize("processes", [{"segment_bytes": 1 << 20, "max_bytes": 4 << 20}], indirect=True)
def test_intake_resumes_when_room_returns(processes: Processes) -> None:
    """A full spool accepts again by itself once messages are delivered, and then loses nothing more."""
    sender, words = connect(processes.path), processes.shared.words
    number = 0
    deadline = time.monotonic() + PATIENCE_S
    # The space that a segment gives back when it is cut at its end may be room for one more.
    while not (processes.ledger_by_topic() and words[Field.FULL]):
        assert time.monotonic() < deadline, "it was never full"
        sender.send(message(0, number, 40000))
        number += 1
    # Messages that are still in the socket's queue would take the room that returns.
    while words[Field.SYNCED_SEQUENCE] + processes.ledger_by_topic().total() < number:
        assert time.monotonic() < deadline, "some are neither stored nor discarded"
        time.sleep(0.01)
    words[Field.LOW_WATERMARK] = words[Field.SYNCED_SEQUENCE]
    while words[Field.FULL]:
        assert time.monotonic() < deadline, "no room returns"
        time.sleep(0.01)
    before = processes.ledger_by_topic()
    for i in range(20):
        sender.send(message(1, i, 40000))
    sender.close()
    assert processes.stop() == [0, 0]
    assert by_sender(processes)[1] == list(range(20))
    assert processes.ledger_by_topic() == before


def await_empty(processes: Processes) -> None:
    """Return when no datagram is in the socket's queue."""
    deadline = time.monotonic() + PATIENCE_S
    while select.select([processes.receiver], [], [], 0)[0]:
        assert time.monotonic() < deadline, "the worker does not read"
        time.sleep(0.001)


@pytest.mark.parametrize("processes", [{"segment_bytes": 1 << 20, "max_bytes": 64 << 20}], indirect=True)
def test_a_clean_stop_empties_the_socket(processes: Processes) -> None:
    """SIGTERM: what was sent before is stored, the log is sealed, and later senders are refused."""
    with connect(processes.path) as sender:
        for i in range(192):
            sender.send(message(0, i, 100))
        # The stopped worker reads nothing below: an empty queue has room for 10 messages at least.
        await_empty(processes)
        halt(processes.pids["ingest"])
        for i in range(192, 200):
            sender.send(message(0, i, 100))
        os.kill(processes.pids["ingest"], signal.SIGTERM)
        os.kill(processes.pids["ingest"], signal.SIGCONT)
        assert processes.stop() == [0, 0]
        with pytest.raises(OSError, match=r"Broken pipe|refused"):
            sender.send(message(0, 200, 100))
    assert by_sender(processes)[0] == list(range(200))
    assert processes.segments()[-1].footer


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.parametrize("processes", [{"segment_bytes": 1 << 20, "max_bytes": 64 << 20}], indirect=True)
def test_the_keeper_may_be_away(processes: Processes) -> None:
    """With the keeper stopped, intake waits for a segment when it needs one, and loses nothing."""
    halt(processes.pids["keeper"])
    out = processes.directory / "sent"
    pid = fork(lambda: send(processes.path, 0, out, lambda count: count == 1000))
    time.sleep(0.2)
    processes.kill("ingest")
    os.kill(processes.pids["keeper"], signal.SIGCONT)
    assert await_end(pid) == 0
    assert processes.stop() == [0, 0]
    right = ast.literal_eval(out.read_text())["right"]
    assert by_sender(processes)[0] == list(range(right))
