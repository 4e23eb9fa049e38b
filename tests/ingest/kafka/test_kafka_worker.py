"""The Kafka worker: answers, their order and time, its limits, and its death at every step."""

from __future__ import annotations

import os
import socket
import struct
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from kafka.protocol.sasl import SaslHandshakeRequest

from ingest.buffers import connection_buffer
from ingest.buffers.connection_buffers import ConnectionBuffers, holds_anything, read_connection_buffers
from ingest.kafka import clients, kafka_worker, storing
from ingest.kafka.clients import MOST_ANSWERS, Client, Options
from ingest.kafka.errors import Code
from ingest.kafka.kafka_worker import MEMORY_BYTES
from ingest.kafka.lanes import Lane
from ingest.kafka.producers import Producer
from ingest.sockets.holding import DESCRIPTORS
from ingest.worker import burst
from spool.format.wire import Reason
from spool.log.quotas import NAME, NAME_BYTES, OVER, row_at
from spool.shared.state import Field
from tests.ingest.kafka.batches import Record, record_batch
from tests.ingest.kafka.door import LIMIT, Door, numbered, outcome_of, values
from tests.ingest.stream_clients import Kill, Killed

DOOR_STEPS = [
    (Lane, "reserve"),
    (Lane, "begin"),
    (Lane, "write"),
    (Lane, "offer"),
    (Lane, "close"),
    (Producer, "begin"),
    (Producer, "note"),
    (connection_buffer, "offer"),
    (connection_buffer, "free_buffer"),
    (storing, "note_stored"),
    (clients, "write_answer"),
]
INGEST_STEPS = [
    (ConnectionBuffers, "gather"),
    (ConnectionBuffers, "list_messages"),
    (ConnectionBuffers, "settle"),
    (connection_buffer, "take"),
    (burst, "store"),
]


def test_answered_when_synced(door: Door) -> None:
    """An answer comes when the message is synced, and not before; its offset is the log's sequence."""
    caller = door.connect()
    caller.send([("orders", 1, numbered(0, 3))])
    for _ in range(3):
        door.worker.step(0)
        door.store()
    assert door.values() == values(0, 3)
    assert not caller.has_answer()
    door.settle()
    answer = caller.receive()
    assert outcome_of(answer) == [(0, 0)]
    assert [(one.topic, one.flags, one.number) for one in door.stored()] == [(b"orders", 8, 1)] * 3
    assert caller.produce(numbered(3, 2)) == (0, 3)


def test_pipelined(door: Door) -> None:
    """Requests that a client sends without waiting are stored and answered in their order."""
    caller = door.connect()
    for number in range(10):
        caller.send([("orders", 0, numbered(10 * number, 10))])
    door.settle(30)
    assert [outcome_of(caller.receive()) for _ in range(10)] == [[(0, 10 * number)] for number in range(10)]
    assert door.values() == values(0, 100)


def test_several_partitions(door: Door) -> None:
    """A request for several partitions, of which one does not exist, stores the others."""
    caller = door.connect()
    caller.send([("orders", 2, numbered(0, 1)), ("orders", 3, numbered(1, 1)), ("other", 0, numbered(2, 1))])
    door.settle()
    assert outcome_of(caller.receive()) == [(0, 0), (int(Code.UNKNOWN_TOPIC_OR_PARTITION), -1), (0, 1)]
    assert [(one.topic, one.number) for one in door.stored()] == [(b"orders", 2), (b"other", 0)]


def test_without_acknowledgement(door: Door) -> None:
    """With acks=0 there is no answer, and the records are stored."""
    caller = door.connect()
    caller.send([("orders", 0, numbered(0, 2))], acks=0)
    door.settle()
    assert not caller.has_answer()
    assert door.values() == values(0, 2)


def test_sent_again(door: Door) -> None:
    """An idempotent producer's batch that is sent again is answered as before, and not stored again."""
    caller = door.connect()
    assert caller.produce(numbered(0, 300, producer=7)) == (0, 0)
    assert door.connect().produce(numbered(0, 300, producer=7)) == (0, 0)
    assert caller.produce(numbered(300, 10, producer=7)) == (0, 300)
    assert door.values() == values(0, 310)


def test_sequences(door: Door) -> None:
    """A batch that leaves a gap is refused, one of an earlier epoch, too; a later epoch begins at 0."""
    caller = door.connect()
    assert caller.produce(numbered(0, 5, producer=7)) == (0, 0)
    assert caller.produce(numbered(6, 5, producer=7))[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert caller.produce(numbered(0, 5, producer=7, epoch=1)) == (0, 5)
    assert caller.produce(numbered(5, 5, producer=7))[0] == Code.INVALID_PRODUCER_EPOCH
    assert len(door.values()) == 10


def test_known_after_a_restart(door: Door) -> None:
    """The next worker knows what a producer sent last."""
    door.connect().produce(numbered(0, 5, producer=7))
    door.restart()
    caller = door.connect()
    assert caller.produce(numbered(0, 5, producer=7)) == (0, 0)
    assert caller.produce(numbered(5, 5, producer=7)) == (0, 5)
    assert door.values() == values(0, 10)


def test_large_batch(door: Door) -> None:
    """A batch that no single run has room for is stored in several, in order, and answered once."""
    size, count = LIMIT // 2, 40
    batch = record_batch(
        [Record(b"%*d" % (size, number)) for number in range(count)], producer=3, epoch=0, sequence=0
    )
    caller = door.connect()
    caller.send([("orders", 0, batch)])
    door.settle(60)
    assert outcome_of(caller.receive())[0][0] == 0
    assert [int(value or b"") for value in door.values()] == list(range(count))
    assert caller.produce(numbered(count, 1, producer=3))[0] == 0


def test_full(door: Door) -> None:
    """While the spool is full nothing is taken; its client hears an error that it sends again for."""
    door.shared.words[Field.FULL] = 1
    caller = door.connect()
    caller.send([("orders", 0, numbered(0, 5, producer=7))], timeout_ms=100)
    for _ in range(3):
        door.worker.step(0)
    time.sleep(0.15)
    door.worker.step(0)
    assert outcome_of(caller.receive()) == [(int(Code.NOT_ENOUGH_REPLICAS), -1)]
    assert not door.values()
    door.shared.words[Field.FULL] = 0
    assert caller.produce(numbered(0, 5, producer=7)) == (0, 0)
    assert door.values() == values(0, 5)


def test_a_first_batch_that_was_refused_is_the_first(door: Door) -> None:
    """One behind it is not taken before: an idempotent client would take the first for stored."""
    door.shared.words[Field.FULL] = 1
    caller = door.connect()
    for first in (0, 5):
        caller.send([("orders", 0, numbered(first, 5, producer=7))], timeout_ms=0)
        for _ in range(3):
            door.worker.step(0)
        door.shared.words[Field.FULL] = 0
    door.settle()
    codes = [outcome_of(caller.receive())[0][0] for _ in range(2)]
    assert codes == [Code.NOT_ENOUGH_REPLICAS, Code.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert not door.values()
    assert caller.produce(numbered(0, 5, producer=7)) == (0, 0)
    assert caller.produce(numbered(5, 5, producer=7)) == (0, 5)
    # A later epoch begins where it likes.
    door.shared.words[Field.FULL] = 1
    caller.send([("orders", 0, numbered(0, 5, producer=7, epoch=1))], timeout_ms=0)
    door.settle()
    assert outcome_of(caller.receive())[0][0] == Code.NOT_ENOUGH_REPLICAS
    door.shared.words[Field.FULL] = 0
    assert caller.produce(numbered(0, 5, producer=7, epoch=2)) == (0, 10)
    assert door.values() == [*values(0, 10), *values(0, 5)]


def test_full_without_acknowledgement(door: Door) -> None:
    """A client would not hear of a refusal: the log stores what it still has room for, or counts it."""
    door.shared.words[Field.FULL] = 1
    caller = door.connect()
    caller.send([("orders", 0, numbered(0, 5))], acks=0)
    door.settle()
    assert door.values() == values(0, 5)
    assert not caller.has_answer()


def test_all_of_a_batch_is_offered_without_acknowledgement(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log counts what it refuses: so it hears of the rest, too, which takes several runs."""
    monkeypatch.setattr(Lane, "outcome", lambda _lane, _number: (int(Reason.SPOOL_FULL), 0))
    size, count = LIMIT // 2, 40
    caller = door.connect()
    batch = record_batch([Record(b"%*d" % (size, number)) for number in range(count)])
    caller.send([("orders", 0, batch)], acks=0)
    door.settle(60)
    assert len(door.values()) == count
    monkeypatch.undo()
    assert caller.produce(numbered(0, 1)) == (0, count)


def test_an_error_without_acknowledgement(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    """The connection ends, as a broker ends it, and a line says why."""
    caller = door.connect()
    caller.send([("orders", 99, numbered(0, 5))], acks=0)
    door.settle()
    assert caller.receive() is None
    assert "with acks=0, in vain: the topic has 3 partitions" in caplog.text


def test_a_request_has_its_memory_until_it_is_stored(door: Door) -> None:
    """Also when its client has gone: or connections that come, send and go would take all there is."""
    caller, memory = door.connect(), door.worker._memory
    caller.send([("orders", 0, record_batch([Record(b"x" * 1000)] * 2000))])
    for _ in range(20):
        door.worker.step(0)
    assert memory._given > 2_000_000
    # Reset, not closed: an end in order is seen when the worker reads next.
    caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.sock.close()
    door.worker.step(0)
    assert (len(door.worker._clients), door.worker._leaving) == (0, 1)
    assert memory._given > 2_000_000
    door.settle(60)
    assert (memory._given, door.worker._leaving, door.worker._of) == (0, 0, {})
    assert len(door.values()) == 2000


def test_those_that_left_count_until_they_are_stored(memory: Path) -> None:
    """There are no more connections than that, however fast they come, send and go."""
    door = Door(memory)
    door.worker._most = 2
    for number in range(2):
        caller = door.connect()
        caller.send([("orders", 0, numbered(number, 1))], acks=0)
        for _ in range(3):
            door.worker.step(0)
        caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        caller.sock.close()
        door.worker.step(0)
    late = door.connect()
    door.worker.step(0)
    assert late.receive() is None
    door.settle()
    assert door.connect().produce(numbered(2, 1)) == (0, 2)
    assert door.values() == values(0, 3)
    door.close()


def test_requests_that_are_there_are_taken_when_there_is_memory(door: Door) -> None:
    """The worker goes on with them by itself."""
    caller, memory = door.connect(), door.worker._memory
    memory._given = MEMORY_BYTES
    batch = record_batch([Record(b"x" * 1000)] * 150)
    for _ in range(3):
        caller.send([("orders", 0, batch)])
    door.settle(30)
    (client,) = door.worker._clients.values()
    assert client.starved
    memory._given = 0
    door.worker._feed()
    door.settle(60)
    assert [outcome_of(caller.receive())[0][0] for _ in range(3)] == [0] * 3
    assert (memory._given, client.granted) == (0, 0)


def test_a_request_that_is_stored_gives_its_memory_back(door: Door) -> None:
    """Its connection lives on, and sends nothing more."""
    caller = door.connect()
    caller.send([("orders", 0, record_batch([Record(b"x" * 1000)] * 300))])
    door.settle(60)
    assert outcome_of(caller.receive())[0][0] == 0
    assert door.worker._memory._given == 0


def test_a_request_that_waits_for_its_answer_takes_no_memory(door: Door) -> None:
    """Its batches are in the log, or are refused: no part of its frame is kept."""
    caller = door.connect()
    caller.send([("orders", 0, record_batch([Record(b"x" * 1000)] * 300)), ("none", 0, numbered(0, 1))])
    for _ in range(20):
        door.worker.step(0)
        door.store()
    (client,) = door.worker._clients.values()
    (reply,) = client.replies
    assert reply.storing
    assert [len(one.part.records) for one in reply.storing.parts] == [0, 0]
    assert [len(part.records) for part in reply.storing.request.parts] == [0, 0]


def test_half_a_request_behind_one_that_waits(door: Door) -> None:
    """The worker sleeps until the rest comes, or the answer is due."""
    caller = door.connect()
    caller.send([("orders", 0, numbered(0, 1))])
    caller.sock.sendall(struct.pack(">i", 1000) + b"begun")
    for _ in range(3):
        door.worker.step(0)
        door.store()
    (client,) = door.worker._clients.values()
    assert client.inbox
    assert client.replies
    assert door.worker._pause(10) > 0


def test_requests_behind_those_that_wait(door: Door) -> None:
    """A client with too many answers to come goes on when they are given, though it sends no more."""
    caller, count = door.connect(), MOST_ANSWERS + 10
    for number in range(count):
        caller.send([("orders", 0, numbered(number, 1))])
    for _ in range(2 * count):
        door.worker.step(0)
        door.store()
    assert door.values() == values(0, MOST_ANSWERS)
    door.settle(30)
    assert [outcome_of(caller.receive()) for _ in range(count)] == [[(0, at)] for at in range(count)]


def test_commits_of_other_inputs(door: Door) -> None:
    """They wake the worker once, and then only while a client waits for its answer."""

    def is_woken() -> bool:
        os.eventfd_write(door.worker._syncs.bell, 1)
        return bool(door.worker._poll.poll(0))

    door.worker.step(0)
    assert is_woken()
    door.worker.step(0)
    assert not is_woken()
    caller = door.connect()
    caller.send([("orders", 0, numbered(0, 1))])
    for _ in range(3):
        door.worker.step(0)
        door.store()
    # The last one may be from before: the next one counts.
    for _ in range(2):
        assert is_woken()
        door.worker.step(0)
    assert not caller.has_answer()
    door.intake.spool.step()
    door.worker.step(0)
    assert outcome_of(caller.receive()) == [(0, 0)]


def test_answers_that_take_long(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were not looked at in a step are in the next one, without another commit."""
    callers = [door.connect() for _ in range(4)]
    for number, caller in enumerate(callers):
        caller.send([("orders", 0, numbered(number, 1))])
    for _ in range(8):
        door.worker.step(0)
        door.store()
    door.intake.spool.step()
    now = time.monotonic()
    times = count(now, 0.03)
    with monkeypatch.context() as slow:
        slow.setattr(time, "monotonic", lambda: next(times))
        door.worker._answer_all(now)
    assert 0 < sum(caller.has_answer() for caller in callers) < 4
    for _ in range(4):
        door.worker._answer_all(now)
    assert all(caller.has_answer() for caller in callers)


def test_a_commit_is_nothing_to_those_who_wait_for_kafka(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their messages are synced: they are looked at now and then, and not for each commit."""
    door = Door(memory, options=Options(waits_for_delivery=True))
    waiting, other = door.connect(), door.connect()
    waiting.send([("orders", 0, numbered(0, 1))], timeout_ms=60_000)
    door.settle()
    looked, worker, now = list[Client](), door.worker, door.worker._answer_at - 0.001
    monkeypatch.setattr(worker, "_answer", lambda client, _now: looked.append(client))
    assert worker._answered_to == 1
    other.send([("orders", 0, numbered(1, 1))], timeout_ms=60_000)
    for _ in range(3):
        worker.step(0)
        door.store()
    door.intake.spool.step()
    looked.clear()
    worker._answered_to = 1
    worker._answer_at = now + 0.001
    worker._answer_all(now)
    assert worker._answered_to == 2
    first = next(iter(worker._clients.values()))
    assert first not in looked
    worker._unanswered[first] = None
    worker._answer_all(now + 0.001)
    assert first in looked
    monkeypatch.undo()
    door.close()


def test_answered_while_the_intake_is_paused(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing more is received or stored, also of what has come, and no client's time goes on."""
    caller, other = door.connect(), door.connect()
    caller.send([("orders", 0, numbered(0, 1))])
    caller.send([("orders", 0, numbered(1, 1))])
    other.sock.sendall(struct.pack(">i", 1000) + b"begun")
    for _ in range(2):
        door.worker.step(0)
    door.store()
    door.intake.spool.step()
    later = time.monotonic() + 100
    with monkeypatch.context() as slow:
        slow.setattr(time, "monotonic", lambda: later)
        for _ in range(3):
            door.worker._answer_paused()
            door.store()
            door.intake.spool.step()
        door.worker._look_for_late(later)
    assert outcome_of(caller.receive()) == [(0, 0)]
    assert len(door.worker._clients) == 2
    assert door.values() == values(0, 1)
    door.settle()
    assert outcome_of(caller.receive()) == [(0, 1)]


def test_those_who_connect_while_it_gives_way(door: Door) -> None:
    """They are the next worker's: this one would serve them, and then end them."""
    caller = door.connect()
    caller.send([("orders", 0, numbered(0, 1))])
    for _ in range(3):
        door.worker.step(0)
        door.store()
    door.intake.spool.step()
    late = door.connect()
    door.worker.giving_way = True
    door.worker._finish()
    assert outcome_of(caller.receive()) == [(0, 0)]
    assert caller.receive() is None
    assert not door.worker._clients
    door.restart()
    assert late.produce(numbered(1, 1)) == (0, 1)


def test_all_that_came_has_its_turn_before_the_end(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests with acks=0, and then the end of the connection, while others take the worker's time."""
    caller = door.connect()
    door.worker.step(0)
    for number in range(3):
        caller.send([("orders", 0, numbered(number, 1))], acks=0)
    monkeypatch.setattr(door.worker, "_take_turns", lambda: None)
    door.worker.step(0)
    caller.sock.close()
    door.worker.step(0)
    monkeypatch.undo()
    door.settle()
    assert door.values() == values(0, 3)


def test_a_name_that_no_topic_has(door: Door) -> None:
    """Each partition, and the answer, would have a copy of it: it is no request."""
    caller = door.connect()
    caller.send([("x" * 250, 0, numbered(0, 1))])
    door.settle()
    assert caller.receive() is None


def test_a_lane_goes_round(door: Door) -> None:
    """A request of many runs has a lane for one of them, while another waits."""
    del door.worker._free[1:]
    long, short = door.connect(), door.connect()
    size, count = LIMIT // 2, 40
    long.send([("orders", 0, record_batch([Record(b"%*d" % (size, number)) for number in range(count)]))])
    for _ in range(4):
        door.worker.step(0)
    short.send([("orders", 1, numbered(0, 1))])
    rounds = 0
    while not short.has_answer():
        door.settle(1)
        rounds += 1
    assert not long.has_answer()
    door.settle(60)
    assert outcome_of(long.receive())[0][0] == 0
    assert len(door.values()) == count + 1


def test_turns_end_when_they_take_long(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are looked at between them, and the worker beats."""
    now, served = 100.0, list[Client]()

    def serve(client: Client) -> None:
        nonlocal now
        now += 0.03
        served.append(client)

    monkeypatch.setattr(kafka_worker.time, "monotonic", lambda: now)
    monkeypatch.setattr(door.worker, "_go_on", serve)
    for uid in range(10):
        door.worker._turns.add(Client(socket.socket(), None, Options(), uid))  # type: ignore[arg-type]
    door.worker._take_turns()
    assert len(served) == 2
    for client in list(served):
        client.sock.close()
    while (rest := door.worker._turns.next()) is not None:
        rest.sock.close()


def test_over_quota(memory: Path) -> None:
    """A topic over its quota is not taken, and not counted as discarded; others are."""
    door = Door(memory)
    words, row = door.shared.words, row_at(0)
    words[Field.QUOTAS] = words[Field.QUOTA_TOPICS] = 1
    words[row + OVER], words[row + NAME_BYTES] = 1, len(b"orders")
    words[row + NAME] = int.from_bytes(b"orders", "little")
    caller = door.connect()
    caller.send([("orders", 0, numbered(0, 5)), ("other", 0, numbered(5, 5))], timeout_ms=0)
    door.settle()
    assert outcome_of(caller.receive()) == [(int(Code.NOT_ENOUGH_REPLICAS), -1), (0, 0)]
    assert (door.values(), door.intake.refused()) == (values(5, 5), {})
    door.close()


def test_unknown_topic(door: Door) -> None:
    """A topic that is not known is refused, and asked for."""
    assert door.connect().produce(numbered(0, 1), topic="new")[0] == Code.LEADER_NOT_AVAILABLE
    assert door.shared.words[Field.TOPICS_WANTED] == 1


def test_allow_unknown(memory: Path) -> None:
    """An input that allows it stores its messages, and its partition is chosen when it is delivered."""
    door = Door(memory, options=Options(allow_unknown=True))
    assert door.connect().produce(numbered(0, 1), topic="new") == (0, 0)
    assert [(one.topic, one.flags, one.number) for one in door.stored()] == [(b"new", 0, 0)]
    door.close()


def test_delivered(memory: Path) -> None:
    """If answers wait for delivery, a client hears a timeout, and a retry is not stored again."""
    door = Door(memory, options=Options(waits_for_delivery=True))
    caller = door.connect()
    for _ in range(2):
        caller.send([("orders", 0, numbered(0, 5, producer=7))], timeout_ms=100)
        door.settle()
        time.sleep(0.15)
        door.worker.step(0)
        assert outcome_of(caller.receive()) == [(int(Code.REQUEST_TIMED_OUT), -1)]
    # The marks are written more often meanwhile.
    assert door.shared.wants_marks()
    assert door.values() == values(0, 5)
    door.close()


def test_a_retry_is_judged_by_its_own_messages(memory: Path) -> None:
    """A batch was stored in several runs, with others' messages between: a retry does not wait for these."""
    door = Door(memory, options=Options(waits_for_delivery=True))
    size, count = LIMIT // 2, 40
    records = [Record(b"%*d" % (size, number)) for number in range(count)]
    batch = record_batch(records, producer=3, epoch=0, sequence=0)
    long, short = door.connect(), door.connect()
    long.send([("orders", 0, batch)], timeout_ms=60_000)
    while not door.values():
        door.settle(1)
    short.send([("other", 0, numbered(0, 1))], timeout_ms=60_000)
    door.settle(60)
    between = [one.topic for one in door.stored()].index(b"other")
    assert 0 < between < count
    again = door.connect()
    again.send([("orders", 0, batch)], timeout_ms=60_000)
    door.settle(30)
    reply = list(door.worker._clients.values())[-1].replies[0]
    assert reply.storing
    (part,) = reply.storing.parts
    own = {at for first, messages in part.ranges for at in range(first, first + messages)}
    assert own == set(range(count + 1)) - {between}
    door.close()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 1 << 30),
        struct.pack(">ihhi", 8, 999, 0, 1),
        struct.pack(">ihhih", 10, 0, 2, 1, -1),
        b"\x16\x03\x01\x00\xa5",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_no_request(door: Door, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that are no request end their connection, with a line in the log; others go on."""
    other, caller = door.connect(), door.connect()
    caller.sock.sendall(data)
    door.settle()
    assert caller.receive() is None
    assert len(caplog.records) == 1
    assert other.produce(numbered(0, 1)) == (0, 0)


def test_refusals_are_few_lines(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    """A client that asks fifty times for what there is not gets its answers, and the log one line."""
    caller = door.connect()
    for number in range(50):
        request = SaslHandshakeRequest(version=1, mechanism=f"PLAIN-{number}")
        request.with_header(number, "tests")
        caller.sock.sendall(bytes(request.encode(header=True, framed=True)))
        door.settle(1)
    assert door.worker._words[kafka_worker.REQUESTS] == 0
    assert caller.has_answer()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_too_many(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more connections than descriptors new ones of a user are closed; another user gets an idle one's."""
    monkeypatch.setattr(kafka_worker, "descriptors", lambda: DESCRIPTORS + 3)
    door = Door(memory)
    callers = []
    for _ in range(4):
        callers.append(door.connect())
        door.worker.step(0)
    assert callers[3].receive() is None
    assert callers[0].produce(numbered(0, 1)) == (0, 0)
    for client in door.worker._clients.values():
        client.uid = 77
    door.worker._of = {77: 3}
    other = door.connect()
    assert other.produce(numbered(1, 1)) == (0, 1)
    assert callers[1].receive() is None
    door.close()


def test_slow_reader(door: Door) -> None:
    """A client that reads no answers is not read from any more, and takes no more memory."""
    caller = door.connect()
    caller.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    request = struct.pack(">ihhih", 10, 18, 0, 1, -1) * 1000
    caller.sock.settimeout(0.2)
    with suppress(TimeoutError):
        for _ in range(10_000):
            caller.sock.sendall(request)
            for _ in range(100):
                door.worker.step(0)
        pytest.fail("it is read from all the time")
    (client,) = door.worker._clients.values()
    assert len(client.outbox) < 2 << 20
    assert len(client.inbox) < 1 << 20


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("who", ["door", "ingest"])
def test_killed_at_each_step(memory: Path, who: str, *, after: bool) -> None:
    """Whichever step a worker dies before or after, what is sent until it is answered is stored once."""
    for at in range(1, 1000):
        directory = memory / f"{at}"
        directory.mkdir()
        door, kill = Door(directory), Kill(at, after=after)
        with pytest.MonkeyPatch.context() as steps:
            for home, name in DOOR_STEPS if who == "door" else INGEST_STEPS:
                steps.setattr(home, name, kill.wrap(getattr(home, name)))
            for first in (0, 300, 310):
                _send_until_answered(door, first, 300 if first == 0 else 10, who)
        assert door.values() == values(0, 320), f"killed at {at}"
        assert not read_connection_buffers(door.lanes.path)
        assert not holds_anything(door.lanes.path)
        door.close()
        if kill.left > 0:
            return
    pytest.fail("there is always one more step")


def _send_until_answered(door: Door, first: int, count: int, who: str) -> None:
    for _ in range(5):
        caller = door.connect()
        try:
            error, offset = caller.produce(numbered(first, count, producer=7))
        except Killed:
            door.restart() if who == "door" else door.restart_ingest()
        else:
            assert (error, offset) == (0, first)
            return
    pytest.fail("it is never answered")
