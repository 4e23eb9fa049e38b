"""The acknowledger step by step, in this process: its messages and their replies."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ingest import acknowledger
from ingest.access import Rules
from ingest.acknowledger import (
    FINISH_S,
    GIVE_UP_S,
    MOST,
    Acknowledger,
)
from ingest.buffers.staging import MSG_DONTWAIT, MSG_WAITFORONE
from ingest.reply import WHEN_DELIVERED, WHEN_SYNCED, Status
from ingest.sockets.listening import open_socket
from ingest.worker import burst
from spool.format.wire import Reason, encode, encode_batch, encode_message
from spool.index.segment_list import SegmentList
from spool.log.quotas import NAME, NAME_BYTES, OVER, row_at
from spool.marks.discarded import Changes, Discard
from spool.marks.marks import Marks
from spool.shared.state import Field
from tests.ack_client import Client, with_flags
from tests.ingest.intake import Intake


class Scene:
    """An intake, an acknowledger and a client, each of which does nothing by itself."""

    def __init__(self, intake: Intake) -> None:
        self.intake, self.shared = intake, intake.spool.shared
        self.path = intake.spool.directory / "ack"
        self.receiver = open_socket(self.path)
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        intake.worker.job[burst.FLAGS] = MSG_WAITFORONE | MSG_DONTWAIT
        intake.worker.job[burst.USED] = intake.worker.staging.slots
        self.client = Client(self.path)
        self.ack = self.start()

    def start(
        self, *, knows_delivery: bool = True, last_reader: bool = True, most: int = MOST
    ) -> Acknowledger:
        """An acknowledger that knows nothing of those before it."""
        self.ack = Acknowledger(
            self.receiver,
            self.intake.receiver.getsockname(),
            self.intake.spool.layout,
            self.shared,
            bell=self.bell,
            last_reader=last_reader,
            knows_delivery=knows_delivery,
            most=most,
        )
        return self.ack

    def take_in(self) -> None:
        """The ingest worker stores the messages in its socket; nothing is synced."""
        while self.intake.worker._round():
            continue

    def sync(self) -> None:
        """The keeper commits."""
        self.intake.spool.step()

    def told(self) -> list[tuple[int, int, int]]:
        """(status, timestamp, sequence) of the replies since the last call."""
        self.client.told.clear()
        self.client.drain()
        return [(r.status, r.timestamp, r.sequence) for r in self.client.told]

    def close(self) -> None:
        """Let go of everything."""
        self.ack.close()
        self.client.close()
        self.receiver.close()
        os.close(self.bell)


@pytest.fixture
def scene(intake: Intake) -> Iterator[Scene]:
    """All of it, at work."""
    made = Scene(intake)
    yield made
    made.close()


def test_synced_is_said_when_it_is(scene: Scene) -> None:
    """Not when it is passed on, not when it is written: when it is committed."""
    for number in range(2):
        scene.client.send(b"v", WHEN_SYNCED, timestamp=number)
        scene.ack.step()
        assert scene.told() == []
        scene.take_in()
        scene.ack.step()
        assert scene.told() == []
        scene.sync()
        scene.ack.step()
        assert scene.told() == [(Status.SYNCED, number, number)]
    expected = [encode(b"t", b"v", timestamp=number, partition_key=0) for number in range(2)]
    assert scene.intake.stored() == expected


def test_commits_end_its_wait(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a message of its own is on the way, and not else: other inputs have the log synced, too."""
    watched = list[int]()

    class Poll:
        def register(self, fd: int | socket.socket, _events: int) -> None:
            watched.append(fd if isinstance(fd, int) else fd.fileno())

        def poll(self, _wait_ms: float) -> None:
            pass

    monkeypatch.setattr(acknowledger.select, "poll", Poll)
    scene.ack._wait()
    assert scene.bell not in watched
    scene.client.send(b"v", WHEN_SYNCED, timestamp=1)
    scene.ack.step()
    scene.ack._wait()
    assert scene.bell in watched


def test_messages_of_others_are_not_taken_for_ours(scene: Scene) -> None:
    """The same bytes from another process answer none of ours, which are behind them."""
    twin = encode(b"t", b"v", timestamp=7, partition_key=0)
    child = os.fork()
    if not child:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.connect(scene.intake.receiver.getsockname())
            other.send(twin)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    scene.client.send(b"v", WHEN_SYNCED, timestamp=7)
    scene.ack.step()
    scene.take_in()
    scene.sync()
    scene.ack.step()
    assert scene.intake.stored() == [twin, twin]
    assert scene.told() == [(Status.SYNCED, 7, 1)]


def test_what_was_lost_on_the_way(scene: Scene) -> None:
    """A message that later ones have overtaken will not come any more; its sender gets that answer."""
    for number in range(3):
        scene.client.send(b"v%d" % number, WHEN_SYNCED, timestamp=number)
    scene.ack.step()
    scene.intake.receiver.recv(100)
    scene.take_in()
    scene.sync()
    scene.ack.step()
    assert scene.told() == [(Status.UNKNOWN, 0, -1), (Status.SYNCED, 1, 0), (Status.SYNCED, 2, 1)]


def test_given_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unknown after a while, and only once; should it still come, a later one is not taken for it."""
    scene.client.send(b"v", WHEN_SYNCED, timestamp=5)
    scene.ack.step()
    for after, replies in ((GIVE_UP_S / 2, []), (GIVE_UP_S, [(Status.UNKNOWN, 5, -1)])):
        now = time.monotonic() + after
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        scene.ack.step()
        assert scene.told() == replies
    scene.client.send(b"v", WHEN_SYNCED, timestamp=5)
    scene.ack.step()
    scene.take_in()
    scene.sync()
    scene.ack.step()
    assert scene.told() == [(Status.SYNCED, 5, 1)]


def test_a_full_spool(scene: Scene) -> None:
    """A client that asks is answered at once, and nothing is taken; counted here, and as received nowhere."""
    scene.shared.words[Field.FULL] = 1
    scene.client.send(b"v", WHEN_DELIVERED, timestamp=5)
    scene.ack.step()
    scene.client.drain()
    assert [(r.status, r.reason) for r in scene.client.told] == [(Status.DISCARDED, Reason.SPOOL_FULL)]
    scene.shared.words[Field.FULL] = 0
    scene.take_in()
    scene.sync()
    assert scene.intake.stored() == []
    assert scene.shared.words[Field.ACK + acknowledger.REFUSED] == 1


def resolve(scene: Scene, changes: Changes) -> None:
    """Do as a deliverer does: mark it, and end, since LMDB wants one environment a process."""
    if scene.ack._outcomes:
        scene.ack._outcomes.close()
        scene.ack._outcomes = None
    marks = Marks(scene.intake.spool.layout.delivery, SegmentList(scene.intake.spool.layout))
    marks.commit(changes)
    marks.close()


def open_as_if_somebody_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no deliverer here; a process that holds the lock file itself would not see one."""
    monkeypatch.setattr("spool.marks.outcomes.is_in_use", lambda _path: True)


def test_delivered_is_said_when_it_is_marked(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The low watermark or a mark above it says so; a discarded message is called that, with its reason."""
    open_as_if_somebody_wrote(monkeypatch)
    for number in range(4):
        scene.client.send(b"v%d" % number, WHEN_DELIVERED, timestamp=number)
    scene.ack.step()
    scene.take_in()
    scene.sync()
    scene.ack.step()
    assert not scene.shared.wants_marks()
    scene.ack._look()
    assert scene.shared.wants_marks()
    assert scene.told() == []
    resolve(scene, Changes(1))
    scene.ack._look()
    assert scene.told() == [(Status.DELIVERED, 0, 0)]
    resolve(scene, Changes(3, discarded=[Discard(np.array([2]), Reason.TOO_LARGE, b"t", 1)]))
    scene.ack._look()
    scene.client.told.clear()
    scene.client.drain()
    assert [(r.status, r.timestamp, r.reason) for r in scene.client.told] == [
        (Status.DELIVERED, 1, 0),
        (Status.DISCARDED, 2, Reason.TOO_LARGE),
    ]


def test_a_batch_has_one_reply_for_all_of_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is synced with its messages, and delivered when the last of them is; discarded when one was."""
    open_as_if_somebody_wrote(monkeypatch)
    wants = WHEN_SYNCED | WHEN_DELIVERED
    for number in range(2):
        parts = [encode(b"t", b"%d" % place, timestamp=10 * number + place) for place in range(3)]
        scene.client.send_raw(with_flags(encode_batch(parts), wants))
    scene.client.send_raw(with_flags(encode_message(b"t", None, timestamp=20), wants))
    scene.ack.step()
    scene.take_in()
    scene.sync()
    scene.ack.step()
    assert scene.told() == [(Status.SYNCED, 0, 0), (Status.SYNCED, 10, 3), (Status.SYNCED, 20, 6)]
    resolve(scene, Changes(2))
    scene.ack._look()
    assert scene.told() == []
    resolve(scene, Changes(5, discarded=[Discard(np.array([4]), Reason.TOO_LARGE, b"t", 1)]))
    scene.ack._look()
    assert scene.told() == [(Status.DELIVERED, 0, 0)]
    resolve(scene, Changes(7))
    scene.ack._look()
    assert scene.told() == [(Status.DISCARDED, 10, 3), (Status.DELIVERED, 20, 6)]
    assert scene.ack._awaited == 0


def test_messages_of_batches_that_are_alike(scene: Scene) -> None:
    """A batch of equal messages, and single ones like its first and its last: each has a reply of its own."""
    a, b = encode(b"t", b"a", timestamp=1), encode(b"t", b"b", timestamp=1)
    sent = [encode_batch([a, a, a]), a, encode_batch([a, b]), a, b, encode_batch([b, a])]
    for one in sent:
        scene.client.send_raw(with_flags(one, WHEN_SYNCED))
    scene.ack.step()
    scene.take_in()
    scene.sync()
    scene.ack.step()
    assert [sequence for _, _, sequence in scene.told()] == [0, 3, 4, 6, 7, 8]
    assert {r.status for r in scene.client.told} == {Status.SYNCED}
    assert not scene.ack._passed


def test_a_batch_with_a_message_that_its_sender_may_not_write(scene: Scene) -> None:
    """It is refused as a whole, and nothing of it is passed on."""
    scene.ack._rules = Rules({"t": ["uid:7"]}, own_uid=1)
    scene.client.send_raw(with_flags(encode_batch([encode(b"u", b""), encode(b"t", b"")]), WHEN_SYNCED))
    scene.ack.step()
    assert scene.told() == [(Status.DISCARDED, 0, -1)]
    scene.take_in()
    assert scene.intake.stored() == []


def test_where_nobody_knows_what_is_delivered(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks that say only "handed over" are not called delivered."""
    open_as_if_somebody_wrote(monkeypatch)
    scene.ack.close()
    scene.start(knows_delivery=False)
    scene.client.send(b"v", WHEN_SYNCED | WHEN_DELIVERED, timestamp=1)
    scene.ack.step()
    scene.take_in()
    scene.sync()
    resolve(scene, Changes(1))
    scene.ack.step()
    assert scene.told() == [(Status.SYNCED, 1, 0), (Status.UNKNOWN, 1, 0)]


def test_more_than_can_be_waited_for(scene: Scene) -> None:
    """While Kafka is away the oldest are given up, and no sender waits for it."""
    scene.ack.close()
    scene.start(most=3)
    for number in range(5):
        scene.client.send(b"v%d" % number, WHEN_DELIVERED, timestamp=number)
        scene.ack.step()
        scene.take_in()
        scene.sync()
        scene.ack.step()
    assert scene.told() == [(Status.UNKNOWN, 0, 0), (Status.UNKNOWN, 1, 1)]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_one_sender_does_not_push_out_another(scene: Scene) -> None:
    """The sender with most waiting gives up its oldest, whichever sender comes."""
    scene.ack.close()
    scene.start(most=3)

    def send(number: int) -> None:
        scene.client.send(b"v%d" % number, WHEN_DELIVERED, timestamp=number)
        scene.ack.step()
        scene.take_in()
        scene.sync()
        scene.ack.step()

    send(0)
    scene.path.parent.chmod(0o711)
    os.setresuid(12_001, 12_001, 0)
    try:
        scene.client.send(b"other", WHEN_DELIVERED, timestamp=1)
        for number in range(2, 6):
            scene.client.send(b"other%d" % number, WHEN_DELIVERED, timestamp=number)
    finally:
        os.setresuid(0, 0, 0)
    for _ in range(6):
        scene.ack.step()
        scene.take_in()
        scene.sync()
        scene.ack.step()
    # The first, of root's, is waited for still.
    assert scene.told() == [(Status.UNKNOWN, number, number) for number in (1, 2, 3)]


def test_a_full_datagram_socket(scene: Scene) -> None:
    """Messages without room there wait, in order, as do senders of more; none is lost or doubled."""
    sent = 0
    while not scene.ack._held:
        scene.client.send(b"v", 0, timestamp=sent)
        sent += 1
        scene.ack._take()
    for _ in range(5):
        scene.client.send(b"v", 0, timestamp=sent)
        sent += 1
        scene.ack.step()
    rounds = 0
    while len(scene.intake.stored()) < sent:
        rounds += 1
        assert rounds < 100
        scene.take_in()
        scene.ack.step()
        scene.sync()
    assert scene.intake.stored() == [encode(b"t", b"v", timestamp=n, partition_key=0) for n in range(sent)]


def test_a_stop_before_a_full_datagram_socket(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that cannot be passed on delays no stop for ever: it is not answered, and so sent again."""
    while not scene.ack._held:
        scene.client.send(b"v", WHEN_SYNCED)
        scene.ack._take()
    scene.ack.stopping = True
    clock = time.monotonic
    # Its FINISH_S go by in a fifth of a second.
    monkeypatch.setattr(time, "monotonic", lambda: 5 * FINISH_S * clock())
    scene.ack.run()
    assert scene.told() == []
    scene.start()


def test_a_successor_knows_nothing(scene: Scene) -> None:
    """A message that its predecessor passed on is not answered by it."""
    scene.client.send(b"v", WHEN_SYNCED, timestamp=1)
    scene.ack.step()
    scene.ack.close()
    scene.start()
    scene.take_in()
    scene.sync()
    scene.client.send(b"w", WHEN_SYNCED, timestamp=2)
    scene.ack.step()
    scene.take_in()
    scene.sync()
    scene.ack.step()
    assert scene.told() == [(Status.SYNCED, 2, 1)]


def test_who_cannot_be_answered(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative address would be another one here: it is not answered, and its messages are taken."""
    monkeypatch.chdir(scene.intake.spool.directory)
    with Client(scene.path, "relative") as client:
        client.send(b"v", WHEN_SYNCED)
        scene.ack.step()
        scene.take_in()
        scene.sync()
        scene.ack.step()
        client.drain()
        assert client.told == []
    assert len(scene.intake.stored()) == 1


def test_counts(scene: Scene) -> None:
    """The counts that status shows."""
    scene.client.send(b"v", WHEN_SYNCED)
    scene.client.again(with_flags(b"malformed, and too short to be anything", 0))
    scene.ack.step()
    words = scene.shared.words[Field.ACK :][: acknowledger.ACK_WORDS]
    scene.ack._looked = 0.0
    scene.ack.step()
    assert words.tolist() == [2, 0, 0, 1, 0]
    scene.take_in()
    scene.sync()
    scene.ack._looked = 0.0
    scene.ack.step()
    assert words.tolist() == [2, 1, 0, 0, 0]


def test_a_socket_that_was_handed_over_is_not_shut_down(scene: Scene) -> None:
    """At its end it leaves the socket to its successor: later messages wait in it, and are answered."""
    scene.ack.close()
    first = scene.start(last_reader=False)
    first.stopping = True
    first.run()
    scene.client.send(b"v", WHEN_SYNCED)
    ack = scene.start(last_reader=False)
    ack.step()
    scene.take_in()
    scene.sync()
    ack.step()
    assert [status for status, _, _ in scene.told()] == [Status.SYNCED]


def test_its_own_replies_are_not_answered(scene: Scene) -> None:
    """A path that leads to our socket would have us answer ourselves for ever."""
    scene.ack._outbox.send(str(scene.path), b"\xff" * 10, os.geteuid())
    for _ in range(20):
        scene.ack.step()
    assert scene.shared.words[Field.ACK + acknowledger.TAKEN] == 1
    assert scene.ack._outbox.sent == 1


def test_a_topic_over_its_quota(scene: Scene) -> None:
    """Its messages will not be in the log: they are answered at once, and nothing waits behind them."""
    words, row = scene.shared.words, row_at(0)
    words[[Field.QUOTAS, Field.QUOTA_TOPICS, row + OVER, row + NAME_BYTES]] = 1
    words[row + NAME] = ord("t")
    scene.client.send(b"v", WHEN_DELIVERED, timestamp=5)
    scene.client.send(b"v", WHEN_SYNCED, topic=b"u", timestamp=6)
    scene.ack.step()
    scene.take_in()
    scene.sync()
    scene.ack.step()
    assert [(status, at) for status, at, _ in scene.told()] == [(Status.DISCARDED, 5), (Status.SYNCED, 6)]
    assert [r.reason for r in scene.client.told] == [Reason.OVER_QUOTA, 0]
    assert len(scene.intake.stored()) == 1
