"""The witness finds what is missing, there twice, altered, and between which tiers; also after a restart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from confluent_kafka import Producer
from pyroaring import BitMap64

from dispatch.embedded import EmbeddedKafka
from dispatch.record_consumer import RecordConsumer
from pipeline.witness.document import STALE_S, write_document
from pipeline.witness.expected import Spools, SpoolSide
from pipeline.witness.kafka_tier import KafkaTier, Place
from pipeline.witness.report import Report, Row, report
from pipeline.witness.run import FEW, LOOK_S, PAUSE_S, Witness
from pipeline.witness.state import WitnessState
from pipeline.witness.tier import Position
from spool.format.segment_format import BLOCK
from spool.format.wire import encode
from spool.index.identity import read_identity
from spool.index.segment_list import SegmentList
from spool.marks.discarded import Changes, Discard
from spool.marks.marks import Marks
from tests.pipeline.witness.spools import leave
from tests.spool.fixture import SpoolFixture

MESSAGES = 3 * BLOCK
PATIENCE_S = 60.0
QUICK = {"fetch.wait.max.ms": "10", "topic.metadata.refresh.interval.ms": "100"}


def value_of(sequence: int) -> bytes:
    """The value of each message."""
    return b"v%d" % sequence


class Clock:
    """Time that goes on when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Host:
    """A spool with MESSAGES messages, and what delivered them."""

    def __init__(self, directory: Path) -> None:
        self.spool = SpoolFixture(directory, segment_bytes=1 << 18, max_bytes=16 << 20)
        for at in range(0, MESSAGES, 64):
            self.spool.append(
                [encode(b"t%d" % (at % 3), value_of(one), timestamp=one) for one in range(at, at + 64)]
            )
            self.spool.step()
        self.spool.stop()
        self.uuid = read_identity(self.spool.layout)

    @property
    def path(self) -> str:
        """Of the spool."""
        return str(self.spool.layout.directory)

    def deliver(self, end: int, discarded: Iterable[int] = ()) -> None:
        """Have all below `end` resolved."""
        marks = Marks(self.spool.layout.delivery, SegmentList(self.spool.layout))
        gone = [Discard(np.array([one]), 15, b"t", 7) for one in discarded]
        marks.commit(Changes(low_watermark=end, discarded=gone))
        marks.close()

    def send(
        self, kafka: EmbeddedKafka, sequences: Iterable[int], *, prefix: str = "", other: bytes = b""
    ) -> None:
        """Produce the records of messages, with something behind the value."""
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5})
        for one in sequences:
            stamp = self.uuid + one.to_bytes(8, "big")
            topic = f"{prefix}t{one // 64 * 64 % 3}"
            producer.produce(
                topic, value_of(one) + other, None, timestamp=max(one, 1), headers=[("bruce-id", stamp)]
            )
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """One."""
    return Host(tmp_path / "host")


@pytest.fixture
def clusters() -> Iterator[tuple[EmbeddedKafka, EmbeddedKafka]]:
    """Two, the second of which a mirror fills."""
    topics = [(f"{prefix}t{one}", 2) for one in range(3) for prefix in ("", "east.")]
    with closing(EmbeddedKafka(topics=topics)) as one, closing(EmbeddedKafka(topics=topics)) as other:
        yield one, other


class Watching:
    """A witness that works step by step, and can be killed."""

    def __init__(
        self, directory: Path, host: Host, clusters: Mapping[str, tuple[EmbeddedKafka, str]]
    ) -> None:
        self.directory, self.host, self.clusters = directory, host, clusters
        self.clock = Clock()
        self.open()

    def open(self) -> None:
        """Begin, or go on where the last checkpoint was."""
        self.state = WitnessState(self.directory)
        self.tiers = [
            KafkaTier(
                self.state.tier(name),
                Place({"bootstrap.servers": kafka.bootstrap_servers, **QUICK}, prefix),
            )
            for name, (kafka, prefix) in self.clusters.items()
        ]
        self.witness = Witness(
            self.state, Spools([self.host.path]), self.tiers, late_s=60.0, clock=self.clock
        )

    def close(self) -> None:
        """As a kill does: nothing is written."""
        for tier in self.tiers:
            tier.close()
        self.state.close()

    def catch_up(self) -> None:
        """Read all that the tiers have."""
        self.witness.look()
        for _ in range(600):
            self.witness.read(0.05)
            for tier in self.tiers:
                tier.note_positions()
            if not any(tier.is_behind(tier.ends) for tier in self.tiers):
                return
        raise AssertionError("the tiers were not read to their ends")

    def round(self, later_s: float = 61.0) -> Report:
        """Catch up, let time pass, and catch up: then all that was delivered is due."""
        self.catch_up()
        self.witness.look()
        self.clock.now += later_s
        self.catch_up()
        self.witness.look()
        self.witness.look()
        with closing(WitnessState(self.directory, readonly=True)) as state:
            return report(state, Spools([self.host.path]).look())


def test_nothing_is_missing(
    tmp_path: Path, host: Host, clusters: tuple[EmbeddedKafka, EmbeddedKafka]
) -> None:
    """Of what was delivered; discarded messages and those that wait need not be there; blocks are settled."""
    cluster, _ = clusters
    gone = [*range(50, 60), 5000]
    host.deliver(MESSAGES - 10, gone)
    host.send(cluster, (one for one in range(MESSAGES - 10) if one not in gone))
    with closing(Watching(tmp_path / "witness", host, {"kafka": (cluster, "")})) as watching:
        found = watching.round()
        assert found.sound
        (row,) = found.rows
        verdict = row.verdict
        assert (verdict.judged, verdict.late, len(verdict.duplicated)) == (MESSAGES - 10 - len(gone), 0, 0)
        assert (list(verdict.altered), list(verdict.uncompared), found.gaps) == ([], [], [])
        assert list(watching.state.tier("kafka").spool(host.uuid.hex()).settled) == [0, 1]


def test_a_spool_that_is_named_no_more_is_not_watched(
    tmp_path: Path, host: Host, clusters: tuple[EmbeddedKafka, EmbeddedKafka]
) -> None:
    """Its state is kept, and judges nothing that came later: an audit says so."""
    host.deliver(MESSAGES)
    with closing(Watching(tmp_path / "witness", host, {"kafka": (clusters[0], "")})) as watching:
        assert watching.round().unwatched == []
        write_document(tmp_path / "witness", [])
        with closing(WitnessState(watching.directory, readonly=True)) as state:
            assert report(state, Spools([host.path]).look()).unwatched == [host.uuid.hex()]


def test_planted_faults_are_found(
    tmp_path: Path, host: Host, clusters: tuple[EmbeddedKafka, EmbeddedKafka]
) -> None:
    """Exactly those, by sequence, or by block."""
    cluster, _ = clusters
    host.deliver(MESSAGES)
    lost, twice, altered = {3, 4, 5, 4100}, {7, 8, 9000}, {BLOCK * 2 + 77}
    host.send(cluster, (one for one in range(MESSAGES) if one not in lost | altered))
    host.send(cluster, twice)
    host.send(cluster, altered, other=b"!")
    with closing(Watching(tmp_path / "witness", host, {"kafka": (cluster, "")})) as watching:
        found = watching.round()
        (row,) = found.rows
        assert not found.sound
        assert row.verdict.missing == BitMap64(lost)
        assert row.verdict.duplicated == BitMap64(twice)
        assert list(row.verdict.altered) == [2]
        assert list(row.verdict.uncompared) == []


def test_a_message_is_late_before_it_is_missing(
    tmp_path: Path, host: Host, clusters: tuple[EmbeddedKafka, EmbeddedKafka]
) -> None:
    """For the time that it may take; and when it comes after all, it is neither."""
    cluster, _ = clusters
    host.deliver(MESSAGES)
    host.send(cluster, range(MESSAGES - 3))
    with closing(Watching(tmp_path / "witness", host, {"kafka": (cluster, "")})) as watching:
        watching.catch_up()
        (row,) = watching.round(later_s=30.0).rows
        assert (row.verdict.late, len(row.verdict.missing)) == (MESSAGES - (MESSAGES - 3), 0)
        (row,) = watching.round().rows
        assert (row.verdict.late, list(row.verdict.missing)) == (0, list(range(MESSAGES - 3, MESSAGES)))
        host.send(cluster, range(MESSAGES - 3, MESSAGES))
        (row,) = watching.round().rows
        assert (row.verdict.late, len(row.verdict.missing), len(row.verdict.duplicated)) == (0, 0, 0)


def test_a_tier_that_lacks_a_message_is_named(
    tmp_path: Path, host: Host, clusters: tuple[EmbeddedKafka, EmbeddedKafka]
) -> None:
    """A mirror renames the topics, skips, doubles and alters; what the first tier lacks is not its fault."""
    east, west = clusters
    host.deliver(MESSAGES)
    host.send(east, (one for one in range(MESSAGES) if one != 11))
    skipped, altered = {11, 500, 501, 6000}, {BLOCK + 9}
    host.send(west, (one for one in range(MESSAGES) if one not in skipped | altered), prefix="east.")
    host.send(west, altered, prefix="east.", other=b"?")
    host.send(west, [20], prefix="east.")
    tiers = {"east": (east, ""), "west": (west, "east.")}
    with closing(Watching(tmp_path / "witness", host, tiers)) as watching:
        found = watching.round()
        first, second = (row.verdict for row in found.rows)
        assert (first.missing, list(first.altered)) == (BitMap64([11]), [])
        assert (second.missing, second.duplicated) == (BitMap64(skipped), BitMap64([20]))
        # Block 1 lacks a message, so its sum tells nothing yet.
        assert list(second.altered) == []
        gaps = [(gap.before, gap.behind, list(gap.missing)) for gap in found.gaps]
        assert gaps == [("spool", "east", [11]), ("east", "west", [500, 501, 6000])]
        host.send(west, [6000], prefix="east.")
        found = watching.round()
        assert list(found.rows[1].verdict.altered) == [1]


def test_it_is_exact_after_a_kill(
    tmp_path: Path, host: Host, clusters: tuple[EmbeddedKafka, EmbeddedKafka]
) -> None:
    """Records read after the last checkpoint are read again, and none counts twice."""
    cluster, _ = clusters
    host.deliver(MESSAGES)
    watching = Watching(tmp_path / "witness", host, {"kafka": (cluster, "")})
    for at in range(0, MESSAGES, 1000):
        host.send(cluster, range(at, min(at + 1000, MESSAGES)))
        watching.catch_up()
        watching.close()
        watching.open()
    found = watching.round()
    (row,) = found.rows
    assert (found.sound, row.verdict.judged, len(row.verdict.duplicated)) == (True, MESSAGES, 0)
    watching.close()


def test_after_segments_are_gone(
    tmp_path: Path, host: Host, clusters: tuple[EmbeddedKafka, EmbeddedKafka]
) -> None:
    """The book has what the segments had: the verdict is the same."""
    cluster, _ = clusters
    host.deliver(MESSAGES)
    host.send(cluster, (one for one in range(MESSAGES) if one not in (5, 5000)))
    with closing(Watching(tmp_path / "witness", host, {"kafka": (cluster, "")})) as watching:
        before = watching.round().rows
        count = len(host.spool.layout.list_segments())
        leave(host.spool, 2)
        assert len(host.spool.layout.list_segments()) == count - 2
        after = watching.round().rows
        assert [verdict_of(row) for row in after] == [verdict_of(row) for row in before]


def verdict_of(row: Row) -> tuple[object, ...]:
    """A verdict that can be compared."""
    return tuple(one.tolist() if isinstance(one, np.ndarray) else one for one in row.verdict)


def test_what_kafka_dropped_before_is_not_missing(
    tmp_path: Path, host: Host, clusters: tuple[EmbeddedKafka, EmbeddedKafka], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first run judges what is delivered from then on, though the spool still has the messages before."""
    cluster, _ = clusters
    host.deliver(5000)
    kept = [one for one in range(5000, MESSAGES) if one != 6000]
    host.send(cluster, range(100))
    ends = RecordConsumer.ends
    monkeypatch.setattr(RecordConsumer, "ends", lambda *asked: raised(ends(*asked)))
    with closing(Watching(tmp_path / "witness", host, {"kafka": (cluster, "")})) as watching:
        watching.catch_up()
        host.deliver(MESSAGES)
        host.send(cluster, kept)
        watching.round()
        (row,) = watching.round().rows
        assert (row.verdict.missing, row.verdict.late) == (BitMap64([6000]), 0)


def raised(ends: dict[Position, tuple[int, int]]) -> dict[Position, tuple[int, int]]:
    """As if the first record were dropped; the embedded Kafka drops none by itself."""
    return {one: (min(1, high), high) for one, (_, high) in ends.items()}


def test_a_spool_that_is_named_later_is_judged_from_then_on(
    tmp_path: Path, host: Host, clusters: tuple[EmbeddedKafka, EmbeddedKafka]
) -> None:
    """Its records before that were read as those of a stranger: they are not missing."""
    cluster, _ = clusters
    other = Host(tmp_path / "other")
    for one in (host, other):
        one.deliver(5000)
        one.send(cluster, range(5000))
    with closing(Watching(tmp_path / "witness", host, {"kafka": (cluster, "")})) as watching:
        assert watching.round().sound
        watching.close()
        watching.host = other
        watching.open()
        (row,) = watching.round().rows
        assert (row.side.spool, len(row.verdict.missing)) == (other.uuid.hex(), 0)


def test_spools_that_come_later_are_judged_whole(
    tmp_path: Path, host: Host, clusters: tuple[EmbeddedKafka, EmbeddedKafka]
) -> None:
    """Their records are read before the witness knows them: none of these is missing, and a lost one is."""
    cluster, _ = clusters
    others = [Host(tmp_path / name) for name in ("a", "b")]
    paths = [host.path]
    with closing(Watching(tmp_path / "witness", host, {"kafka": (cluster, "")})) as watching:
        watching.catch_up()
        for one in others:
            one.deliver(3000)
            one.send(cluster, (number for number in range(3000) if number != 77))
        for _ in range(50):
            watching.witness.read(0.05)
        paths += [one.path for one in others]
        # As a glob finds more.
        watching.witness._spools = Spools(paths)
        for _ in range(2):
            watching.round()
        verdicts = watching.witness.watches[0].verdicts
        for one in others:
            verdict = verdicts[one.uuid.hex()]
            assert (verdict.judged, list(verdict.missing)) == (3000, [77])


def test_small_bursts_are_read_together(tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a few records the witness pauses, since a burst costs as much as many; not behind many."""
    paused = list[float]()
    monkeypatch.setattr("pipeline.witness.run.time.sleep", paused.append)
    with (
        closing(WitnessState(tmp_path / "witness")) as state,
        closing(KafkaTier(state.tier("t"), Place({"bootstrap.servers": "127.0.0.1:1"}))) as tier,
    ):
        witness = Witness(state, Spools([host.path]), [tier], late_s=60.0)
        for count, pauses in ((FEW, []), (FEW - 1, [PAUSE_S]), (1, [PAUSE_S]), (0, [])):
            monkeypatch.setattr(tier, "read", lambda _wait_s, count=count: count)
            witness.read(1.0)
            assert paused == pauses
            paused.clear()


class Silent(KafkaTier):
    """A cluster that gives no answer: a look at it takes LOOK_S of the clock."""

    LOOK_S = 15.0

    def __init__(self, state: WitnessState, clock: Clock, stop: Event, enough_s: float = 90.0) -> None:
        super().__init__(state.tier("silent"), Place({"bootstrap.servers": "127.0.0.1:1"}))
        self.clock, self.stop, self.looks = clock, stop, list[float]()
        self.enough_s = enough_s

    def look(self, topics: AbstractSet[str] | None) -> None:
        """Wait in vain."""
        self.looks.append(self.clock.now)
        self.clock.now += self.LOOK_S

    def read(self, timeout_s: float) -> int:
        """Nothing comes."""
        self.clock.now += timeout_s or 0.01
        if self.clock.now > self.looks[0] + self.enough_s:
            self.stop.set()
        return 0


def test_a_tier_that_is_away_makes_looks_no_rarer(tmp_path: Path, host: Host) -> None:
    """Looks are LOOK_S apart, though each waits long for an answer: what others gave is written down."""
    stop, clock, state = Event(), Clock(), WitnessState(tmp_path / "witness")
    with closing(state), closing(Silent(state, clock, stop)) as tier:
        Witness(state, Spools([host.path]), [tier], late_s=60.0, clock=clock).run(stop)
    between = np.diff(tier.looks[:-1])
    assert len(between) >= 2
    assert between.max() < Silent.LOOK_S + 2 * LOOK_S


def test_looks_that_take_long_are_no_rarer_than_others_wait(tmp_path: Path, host: Host) -> None:
    """To the page, `doctor` and an audit a witness that has not looked for STALE_S has stopped."""
    stop, clock, state = Event(), Clock(), WitnessState(tmp_path / "witness")
    spools = Spools([host.path])
    look = spools.look

    def take_long() -> list[SpoolSide]:
        clock.now += STALE_S / 4
        return look()

    with (
        pytest.MonkeyPatch.context() as patch,
        closing(state),
        closing(Silent(state, clock, stop, 3 * STALE_S)) as tier,
    ):
        patch.setattr(spools, "look", take_long)
        Witness(state, spools, [tier], late_s=60.0, clock=clock).run(stop)
    assert np.diff(tier.looks).max() < STALE_S
