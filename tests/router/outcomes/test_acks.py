"""Exactly the committed messages are resolved: in any order, over crashes, whatever the marks suffer."""

from __future__ import annotations

import math
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event

import hypothesis.strategies as st
import lmdb
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatch.records import ROW
from router.cluster.brokers import UNROUTED
from router.outcomes.acks import FEW_MESSAGES, Acks, Pace
from router.timing import COMMIT_S, FEW_COMMIT_S, IDLE_S, WRITTEN_S
from spool.errors import MarksFailed
from spool.format.wire import Reason, encode
from spool.index.segment_list import SegmentList
from spool.marks.discarded import Changes
from spool.marks.marks import Marks
from spool.shared.state import Field
from tests.router.fake import Clock
from tests.spool.fixture import SpoolFixture
from tests.spool.stored import lost_of

OPEN, TAKEN, RESOLVED = range(3)


def array(sequences: Sequence[int]) -> np.ndarray:
    """As the router gives them."""
    return np.array(sequences, np.int64)


class AcksFixture:
    """A spool of several segments, numbered with a gap, and the acks over it."""

    def __init__(self, *, gap: bool = False, frames: int = 12) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="bruce-acks-", dir="/dev/shm"))
        self.spool = SpoolFixture(self.directory)
        self.clock = Clock()
        self.sequences: list[int] = []
        self.fill(frames)
        if gap:
            self.spool.lose_power(random.Random(1))
            self.spool.open()
            self.sequences = [sequence for sequence, _ in self.spool.records()]
            self.fill(frames)
        self.open()

    def fill(self, frames: int, messages: int = 20) -> None:
        """Append frames; about four fill a segment."""
        for _ in range(frames):
            first = self.spool.append([encode(b"t", b"v" * 60)] * messages)
            self.sequences += range(first, first + messages)
            self.spool.step()

    def open(self) -> None:
        self.segment_list = SegmentList(self.spool.layout)
        self.marks = Marks(self.spool.layout.delivery, SegmentList(self.spool.layout))
        self.acks = Acks(self.marks, self.segment_list, clock=self.clock)

    def reopen(self) -> None:
        """The deliverer dies, and starts again."""
        self.acks.close()
        self.marks.close()
        self.open()

    def close(self) -> None:
        self.acks.close()
        self.marks.close()
        self.spool.crash()
        shutil.rmtree(self.directory)

    def open_ones(self) -> list[int]:
        return [s for s, o in zip(self.sequences, self.acks.open(array(self.sequences)), strict=True) if o]

    def commit(self) -> int:
        """With offsets as the router would give them."""
        self.acks.write_down({UNROUTED: min(self.open_ones(), default=self.sequences[-1] + 1)})
        return self.acks.wait()

    def damage(self, table: bytes, change: str | None = None, seed: int = 0) -> int:
        """Flip a bit in each row of a table, in value or key, or drop its rows; how many rows."""
        self.marks.close()
        with (
            lmdb.open(str(self.spool.layout.delivery), max_dbs=8, map_size=1 << 30) as env,
            env.begin(write=True) as txn,
        ):
            db = env.open_db(table, txn)
            rows = list(txn.cursor(db))
            for number, (key, value) in enumerate(rows):
                txn.delete(key, db=db)
                at = (number + 1) * (7919 + 13 * seed)
                if change == "value":
                    txn.put(key, flip(value, at), db=db)
                if change == "key":
                    txn.put(flip(key, at), value, db=db)
        self.open()
        return len(rows)


def flip(data: bytes, at: int) -> bytes:
    """Change one bit of one byte."""
    changed = bytearray(data)
    changed[at % len(data)] ^= 1 << at % 8
    return bytes(changed)


@pytest.fixture(params=[False, True], ids=["", "gap"])
def fixture(request: pytest.FixtureRequest) -> Iterator[AcksFixture]:
    """Without and with an epoch between two segments."""
    made = AcksFixture(gap=request.param)
    yield made
    made.close()


def test_the_floor_is_the_lowest_unresolved(fixture: AcksFixture) -> None:
    """Outcomes out of order raise it only when they close the gap, across segments, and to the end."""
    everything = fixture.sequences
    fixture.acks.take(array(everything))
    fixture.acks.resolve(array(everything[1:]))
    assert fixture.commit() == 0
    fixture.acks.resolve(array(everything[:1]))
    assert fixture.commit() == everything[-1] + 1
    assert fixture.acks._segments.keys() <= {fixture.segment_list.segments[-1].first_sequence}
    fixture.reopen()
    assert fixture.acks.low_watermark == everything[-1] + 1
    assert fixture.marks.outcomes().resolved == len(everything)


def test_what_is_not_committed_is_forgotten(fixture: AcksFixture) -> None:
    """And only that: a restart sends again what was resolved since the last commit, and what was taken."""
    first, second, third = fixture.sequences[::3], fixture.sequences[1::3], fixture.sequences[2::3]
    fixture.acks.take(array(fixture.sequences))
    fixture.acks.resolve(array(first))
    fixture.commit()
    fixture.acks.resolve(array(second))
    fixture.reopen()
    assert fixture.open_ones() == sorted(second + third)


def test_given_back_is_open_again(fixture: AcksFixture) -> None:
    """Taken messages are not open, failed ones are."""
    fixture.acks.take(array(fixture.sequences))
    assert fixture.open_ones() == []
    fixture.acks.give_back(array(fixture.sequences[5:9]))
    assert fixture.open_ones() == fixture.sequences[5:9]


def test_a_discard_counts_once(fixture: AcksFixture) -> None:
    """However often it is found again: by the other reader, and after a restart."""
    lost = fixture.sequences[3:8]
    assert fixture.acks.discard(array(lost[:3]), Reason.DAMAGED, b"t") == 3
    assert fixture.acks.discard(array(lost[3:]), Reason.DAMAGED, b"u") == 2
    assert fixture.acks.discard(array(lost), Reason.DAMAGED, b"t") == 0
    fixture.commit()
    fixture.reopen()
    assert fixture.acks.discard(array(lost + fixture.sequences[8:9]), Reason.DAMAGED, b"u") == 1
    fixture.commit()
    counts = {d.topic: d.count for d in fixture.marks.discards()}
    assert counts == {b"t": 3, b"u": 3}
    assert lost_of(fixture.marks) == dict.fromkeys(fixture.sequences[3:9], int(Reason.DAMAGED))
    assert fixture.marks.outcomes().resolved == 6


def test_it_is_due_after_its_time(fixture: AcksFixture) -> None:
    """Not without a change, not before FEW_COMMIT_S is over; behind a rest the first is due at once."""
    fixture.clock.now += 10
    assert not fixture.acks.due()
    fixture.commit()
    fixture.acks.resolve(array(fixture.sequences[:1]))
    fixture.clock.now += 0.9 * FEW_COMMIT_S
    assert not fixture.acks.due()
    fixture.clock.now += 0.1 * FEW_COMMIT_S
    assert fixture.acks.due()
    fixture.commit()
    fixture.clock.now += FEW_COMMIT_S
    fixture.acks.resolve(array(fixture.sequences[1:2]))
    assert fixture.acks.due()


def test_a_write_that_failed_is_not_repeated_at_once(
    fixture: AcksFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many messages wait for it: after COMMIT_S, as the disk may be full for long."""

    def refuse(_changes: object) -> None:
        raise MarksFailed("no space")

    fixture.acks.close()
    pace = Pace(few=5, burst=10)
    fixture.acks = Acks(fixture.marks, fixture.segment_list, pace=pace, clock=fixture.clock)
    monkeypatch.setattr(fixture.marks, "commit", refuse)
    fixture.acks.resolve(array(fixture.sequences[:20]))
    assert fixture.acks.due()
    fixture.commit()
    assert not fixture.acks.due()
    assert fixture.acks.before_burst == 10
    fixture.clock.now += COMMIT_S
    assert fixture.acks.due()
    monkeypatch.undo()
    fixture.commit()


def test_many_are_due_sooner(fixture: AcksFixture) -> None:
    """As many as `few` wait for COMMIT_S only, and so do fewer while a client waits for marks."""
    waits = [False]
    fixture.acks.close()
    pace = Pace(few=5, is_wanted=lambda: waits[0])
    fixture.acks = Acks(fixture.marks, fixture.segment_list, pace=pace, clock=fixture.clock)
    for count, waiting, due in ((4, False, False), (5, False, True), (4, True, True)):
        waits[0] = waiting
        begin = fixture.clock.now
        fixture.acks.resolve(array(fixture.sequences[:count]))
        assert not fixture.acks.due()
        assert fixture.acks.next_write.look == begin + (COMMIT_S if due else FEW_COMMIT_S)
        fixture.clock.now += COMMIT_S
        assert fixture.acks.due() == due
        fixture.sequences = fixture.sequences[count:]
        fixture.commit()
        assert fixture.acks.next_write.look == math.inf


def test_a_write_is_looked_at_when_it_may_be_done(
    fixture: AcksFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After WRITTEN_S, and on a slow disk every IDLE_S."""
    thaw, commit = Event(), fixture.marks.commit
    monkeypatch.setattr(fixture.marks, "commit", lambda changes: (thaw.wait(60), commit(changes)))
    fixture.acks.resolve(array(fixture.sequences[:1]))
    begin = fixture.clock.now
    fixture.acks.write_down({})
    assert fixture.acks.next_write.look == begin + WRITTEN_S
    fixture.acks.resolve(array(fixture.sequences[1:2]))
    fixture.clock.now += 1.0
    assert not fixture.acks.due()
    assert fixture.acks.next_write[1:] == (FEW_MESSAGES - 1, begin + 1.0 + IDLE_S, begin + 1.0 + IDLE_S)
    assert fixture.acks.next_write.look == begin + 1.0 + IDLE_S
    thaw.set()
    fixture.acks.wait()
    assert fixture.acks.due()


def test_a_burst_is_due_at_once(fixture: AcksFixture) -> None:
    """After so many messages, since a restart sends again all without a mark; each write counts from zero."""
    fixture.acks.close()
    fixture.acks = Acks(fixture.marks, fixture.segment_list, pace=Pace(burst=10), clock=fixture.clock)
    fixture.acks.resolve(array(fixture.sequences[:9]))
    fixture.acks.resolve(array(fixture.sequences[:9]))
    assert not fixture.acks.due()
    assert fixture.acks.before_burst == 1
    fixture.acks.resolve(array(fixture.sequences[9:10]))
    assert fixture.acks.due()
    fixture.commit()
    assert fixture.acks.before_burst == 10
    fixture.acks.resolve(array(fixture.sequences[10:19]))
    assert not fixture.acks.due()


def test_resolved_above_the_floor(fixture: AcksFixture) -> None:
    """The messages that wait are those stored above the floor, less these."""
    fixture.acks.resolve(array([*fixture.sequences[:5], *fixture.sequences[7:9], *fixture.sequences[100:]]))
    fixture.commit()
    assert fixture.acks.low_watermark == fixture.sequences[5]
    assert fixture.acks.resolved_above() == len(fixture.sequences) - 5 - 93
    fixture.acks.resolve(array(fixture.sequences))
    fixture.commit()
    assert fixture.acks.resolved_above() == 0


def test_marks_that_cannot_be_written_are_written_later(
    fixture: AcksFixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Delivery goes on, says so once, and nothing of what was resolved meanwhile is forgotten."""

    def refuse(_changes: object) -> None:
        raise MarksFailed("no space")

    monkeypatch.setattr(fixture.marks, "commit", refuse)
    for sequence in fixture.sequences[:5]:
        fixture.acks.resolve(array([sequence]))
        fixture.acks.discard(array([sequence + 10]), Reason.TOO_LARGE, b"t")
        fixture.commit()
    assert len(caplog.records) == 1
    # They count as before: many of them are tried again sooner.
    assert fixture.acks.next_write.few == FEW_MESSAGES - 10
    monkeypatch.undo()
    fixture.commit()
    assert fixture.acks.next_write.few == FEW_MESSAGES
    fixture.reopen()
    assert fixture.acks.low_watermark == 5
    assert len(fixture.open_ones()) == len(fixture.sequences) - 10
    assert sum(d.count for d in fixture.marks.discards()) == 5


def test_a_disk_that_stands_still_holds_nobody_up(
    fixture: AcksFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While marks are written, outcomes are taken, the marked low watermark stays, and nothing is due."""
    thaw, commit = Event(), fixture.marks.commit

    def stand_still(changes: Changes) -> None:
        assert thaw.wait(60)
        commit(changes)

    monkeypatch.setattr(fixture.marks, "commit", stand_still)
    fixture.acks.resolve(array(fixture.sequences[:5]))
    fixture.acks.write_down({})
    fixture.acks.resolve(array(fixture.sequences[5:9]))
    fixture.clock.now += 2 * FEW_COMMIT_S
    assert not fixture.acks.due()
    assert (fixture.acks.low_watermark, fixture.acks.marked_watermark) == (5, 0)
    thaw.set()
    assert fixture.acks.wait() == 5
    assert fixture.acks.due()
    fixture.acks.write_down({})
    assert fixture.acks.wait() == 9


def test_segments_are_retired_below_the_floor(fixture: AcksFixture) -> None:
    """Their marks go, their totals stay; without any marks their name says that they were delivered."""
    count = len(fixture.sequences) * 2 // 3
    fixture.acks.resolve(array(fixture.sequences[:count]))
    low_watermark = fixture.commit()
    assert low_watermark == fixture.sequences[count]
    fixture.spool.shared.words[Field.LOW_WATERMARK] = low_watermark
    fixture.spool.step()
    fixture.reopen()
    assert len(fixture.segment_list.sent) >= 2
    assert fixture.open_ones() == fixture.sequences[count:]
    for table in (b"floor", b"mark", b"offset"):
        fixture.damage(table)
    first = fixture.segment_list.segments[len(fixture.segment_list.sent)].first_sequence
    assert fixture.acks.low_watermark == first
    assert fixture.open_ones() == [s for s in fixture.sequences if s >= first]


# -- the marks suffer ----------------------------------------------------------------------------------


def deliver_some(fixture: AcksFixture) -> tuple[list[int], list[int]]:
    """Resolve the first 30 and every third behind; (resolved, open)."""
    done = fixture.sequences[:30] + fixture.sequences[30::3]
    fixture.acks.resolve(array(done))
    fixture.commit()
    return done, sorted(set(fixture.sequences) - set(done))


def test_marks_lost_and_offsets_kept(fixture: AcksFixture) -> None:
    """The lowest offset is where to begin; everything above is sent again."""
    _, left = deliver_some(fixture)
    fixture.damage(b"mark")
    fixture.damage(b"floor")
    assert fixture.acks.low_watermark == left[0]
    assert fixture.open_ones() == [s for s in fixture.sequences if s >= left[0]]


def test_offsets_lost_and_marks_kept(fixture: AcksFixture) -> None:
    """Nothing is sent again that was marked."""
    _, left = deliver_some(fixture)
    fixture.damage(b"offset")
    assert fixture.acks.low_watermark == left[0]
    assert fixture.open_ones() == left


def test_both_lost(fixture: AcksFixture) -> None:
    """Everything is sent again."""
    deliver_some(fixture)
    for table in (b"mark", b"floor", b"offset"):
        fixture.damage(table)
    assert fixture.acks.low_watermark == 0
    assert fixture.open_ones() == fixture.sequences


def test_one_damaged_offset_makes_the_others_worthless(fixture: AcksFixture) -> None:
    """The one that cannot be read could be the lowest: then it is sent again from the start."""
    fixture.acks.resolve(array(fixture.sequences[:40]))
    fixture.acks.write_down({UNROUTED: 100, 1: 60, 2: 40})
    fixture.acks.wait()
    fixture.damage(b"floor")
    assert fixture.acks.low_watermark == 40
    fixture.damage(b"floor")
    fixture.damage(b"offset", "value")
    assert fixture.acks.low_watermark == 0


def test_what_is_left_out_is_found_again(fixture: AcksFixture) -> None:
    """It is neither sent nor resolved; a successor finds it open, with nothing but the offsets left, too."""
    fixture.acks.resolve(array(range(30)))
    fixture.acks.leave_out(array(range(20, 60)))
    assert fixture.open_ones() == fixture.sequences[60:]
    fixture.acks.resolve(array(fixture.sequences[60:]))
    fixture.acks.write_down({UNROUTED: fixture.sequences[-1] + 1, 1: fixture.sequences[-1] + 1})
    fixture.acks.wait()
    assert fixture.marks.offsets()[UNROUTED] == 30
    fixture.reopen()
    assert fixture.open_ones() == list(range(30, 60))


def test_offsets_of_brokers_that_are_gone_are_forgotten(fixture: AcksFixture) -> None:
    """They would keep a lost low watermark low for ever."""
    fixture.acks.write_down({UNROUTED: 5, 7: 1})
    fixture.acks.wait()
    fixture.acks.write_down({UNROUTED: 9, 8: 3})
    fixture.acks.wait()
    assert fixture.marks.offsets() == {UNROUTED: 9, 8: 3}


@pytest.mark.parametrize("change", ["value", "key"])
@pytest.mark.parametrize("table", [b"floor", b"mark", b"offset", b"discard", b"gone"])
def test_damaged_rows_are_not_believed(fixture: AcksFixture, table: bytes, change: str) -> None:
    """A flipped bit anywhere in a row makes it "not delivered": no open message is ever taken for done."""
    done, left = deliver_some(fixture)
    for sequence, topic in zip(left[:4], [b"t", b"u", b"v", b"w"], strict=True):
        fixture.acks.discard(array([sequence]), Reason.TOO_LARGE, topic)
    fixture.commit()
    for seed in range(3):
        assert fixture.damage(table, change, seed) or seed
    assert set(fixture.open_ones()) >= set(left[4:])
    assert set(fixture.open_ones()) <= set(left) | set(done)
    assert sum(d.count for d in fixture.marks.discards()) <= 4
    assert set(lost_of(fixture.marks)) <= set(left[:4])


def test_every_bit_of_a_mark_is_checked(fixture: AcksFixture) -> None:
    """Byte by byte: a low watermark row with any bit changed does not count."""
    deliver_some(fixture)
    with fixture.marks._env.begin() as txn:
        row = txn.get(b"floor", db=fixture.marks._db[b"floor"])
    assert fixture.marks._sequence(b"floor", row) == fixture.acks.low_watermark
    for at in range(len(row)):
        for bit in range(8):
            changed = bytearray(row)
            changed[at] ^= 1 << bit
            assert fixture.marks._sequence(b"floor", bytes(changed)) is None
    assert fixture.marks._sequence(b"floor", row[:-1]) is None


def test_an_older_snapshot_of_delivery(fixture: AcksFixture) -> None:
    """Messages delivered since are sent again, and nothing else."""
    first = fixture.sequences[:50:2]
    fixture.acks.resolve(array(first))
    fixture.commit()
    fixture.marks.close()
    snapshot = fixture.directory / "snapshot"
    shutil.copytree(fixture.spool.layout.delivery, snapshot)
    fixture.open()
    fixture.acks.resolve(array(fixture.sequences[:100]))
    fixture.commit()
    fixture.marks.close()
    shutil.rmtree(fixture.spool.layout.delivery)
    shutil.copytree(snapshot, fixture.spool.layout.delivery)
    fixture.open()
    assert fixture.open_ones() == sorted(set(fixture.sequences) - set(first))


def test_the_delivery_of_another_spool() -> None:
    """Also of one that was given this spool's uuid: nothing counts as delivered."""
    mine, other = AcksFixture(), AcksFixture()
    try:
        other.acks.resolve(array(other.sequences[:100]))
        other.acks.discard(array(other.sequences[100:110]), Reason.TOO_LARGE, b"t")
        other.commit()
        mine.marks.close()
        other.marks.close()
        shutil.rmtree(mine.spool.layout.delivery)
        shutil.copytree(other.spool.layout.delivery, mine.spool.layout.delivery)
        shutil.copy(mine.spool.layout.identity, other.spool.layout.identity)
        mine.open()
        assert mine.open_ones() == mine.sequences
        assert mine.marks.discards() == []
        assert lost_of(mine.marks) == {}
        mine.acks.resolve(array(mine.sequences[:7]))
        mine.commit()
        assert mine.marks.outcomes().resolved == 7
        other.open()
    finally:
        mine.close()
        other.close()


def reports_of(sequences: Sequence[int], code: int = 0) -> np.ndarray:
    """As librdkafka gives them."""
    rows = np.zeros(len(sequences), ROW)
    rows["sequence"], rows["code"] = sequences, code
    return rows


def test_reports_of_any_segment_are_resolved_together(fixture: AcksFixture) -> None:
    """Those of one segment, the last or not; of two, of resolved ones, or with an error nothing changes."""
    first, second = (info.first_sequence for info in fixture.segment_list.segments[:2])
    earlier = [s for s in fixture.sequences if first <= s < second]
    last = [s for s in fixture.sequences if s >= fixture.segment_list.segments[-1].first_sequence]
    fixture.acks.take(array(fixture.sequences))
    assert not fixture.acks.resolve_reports(reports_of([earlier[-1], second]))
    assert not fixture.acks.resolve_reports(reports_of(earlier, code=1))
    assert fixture.acks.unresolved(array(fixture.sequences)).all()
    assert fixture.acks.resolve_reports(reports_of(earlier))
    assert fixture.acks.resolve_reports(reports_of(last))
    assert fixture.commit() >= second
    assert not fixture.acks.resolve_reports(reports_of(earlier))
    unresolved = fixture.acks.unresolved(array(fixture.sequences))
    assert unresolved.tolist() == [s not in {*earlier, *last} for s in fixture.sequences]


# -- against a model -----------------------------------------------------------------------------------


class AcksModel(RuleBasedStateMachine):
    """A dict of states does the same, and remembers what was committed."""

    def __init__(self) -> None:
        super().__init__()
        self.fixture: AcksFixture | None = None

    @initialize(gap=st.booleans())
    def begin(self, *, gap: bool) -> None:
        self.fixture = AcksFixture(gap=gap, frames=5)
        self.state = dict.fromkeys(self.fixture.sequences, OPEN)
        self.on_disk = dict(self.state)
        self.discards = self.discards_on_disk = 0

    @property
    def live(self) -> AcksFixture:
        assert self.fixture
        return self.fixture

    def pick(self, state: int, seed: int, share: float) -> list[int]:
        chance = random.Random(seed)
        found = [s for s, now in self.state.items() if now == state]
        run = found[chance.randrange(len(found)) :] if found and chance.random() < 0.5 else found
        picked = [s for s in run if chance.random() < share]
        chance.shuffle(picked)
        return picked

    def becomes(self, sequences: list[int], state: int) -> None:
        self.state.update(dict.fromkeys(sequences, state))

    @rule(seed=st.integers(0, 999), share=st.sampled_from([0.1, 0.9, 1.0]))
    def take(self, seed: int, share: float) -> None:
        picked = self.pick(OPEN, seed, share)
        self.live.acks.take(array(picked))
        self.becomes(picked, TAKEN)

    @rule(seed=st.integers(0, 999), share=st.sampled_from([0.1, 0.9, 1.0]))
    def resolve(self, seed: int, share: float) -> None:
        picked = self.pick(TAKEN, seed, share)
        self.live.acks.resolve(array(picked))
        self.becomes(picked, RESOLVED)

    @rule(seed=st.integers(0, 999), share=st.sampled_from([0.1, 1.0]))
    def report(self, seed: int, share: float) -> None:
        """As the router does it: together if they are of one segment, else each way that there is."""
        picked = self.pick(TAKEN, seed, share)
        if picked and not self.live.acks.resolve_reports(reports_of(picked)):
            self.live.acks.resolve(array(picked))
        self.becomes(picked, RESOLVED)

    @rule(seed=st.integers(0, 999))
    def give_back(self, seed: int) -> None:
        picked = self.pick(TAKEN, seed, 0.5)
        self.live.acks.give_back(array(picked))
        self.becomes(picked, OPEN)

    @rule(seed=st.integers(0, 999), state=st.sampled_from([OPEN, TAKEN, RESOLVED]))
    def discard(self, seed: int, state: int) -> None:
        picked = self.pick(state, seed, 0.1)
        found = self.live.acks.discard(array(picked), Reason.TOO_LARGE, b"t")
        assert found == (0 if state == RESOLVED else len(picked))
        self.discards += found
        self.becomes(picked, RESOLVED)

    @rule()
    def commit(self) -> None:
        low_watermark = self.live.commit()
        left = [s for s, state in self.state.items() if state != RESOLVED]
        if left:
            assert low_watermark <= left[0]
            assert all(s >= low_watermark or state == RESOLVED for s, state in self.state.items())
            # In a hole between two segments there is no message: the low watermark may be on either side of
            # it.
            assert not any(low_watermark <= s < left[0] for s in self.state)
        self.on_disk, self.discards_on_disk = dict(self.state), self.discards

    @rule(frames=st.integers(1, 4))
    def append(self, frames: int) -> None:
        known = len(self.live.sequences)
        self.live.fill(frames)
        for sequence in self.live.sequences[known:]:
            self.state[sequence] = self.on_disk[sequence] = OPEN
        self.live.segment_list.refresh()

    @rule()
    def retire(self) -> None:
        self.live.spool.shared.words[Field.LOW_WATERMARK] = self.live.acks.low_watermark
        self.live.spool.step()

    @rule()
    def crash(self) -> None:
        self.live.reopen()
        self.state = {s: RESOLVED if now == RESOLVED else OPEN for s, now in self.on_disk.items()}
        self.discards = self.discards_on_disk
        outcomes = self.live.marks.outcomes()
        assert outcomes.resolved == sum(state == RESOLVED for state in self.state.values())
        assert sum(d.count for d in outcomes.discarded) == self.discards

    @precondition(lambda self: self.fixture is not None)
    @invariant()
    def agrees(self) -> None:
        assert self.live.open_ones() == [s for s, state in self.state.items() if state == OPEN]

    def teardown(self) -> None:
        if self.fixture:
            self.crash()
            self.agrees()
            self.fixture.close()


AcksModel.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAcksModel = AcksModel.TestCase
