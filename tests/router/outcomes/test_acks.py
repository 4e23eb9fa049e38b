"""Exactly the committed messages are resolved: in any order, over crashes, whatever the marks suffer."""

from __future__ import annotations

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

from router.outcomes.acks import Acks
from router.outcomes.outcome_table import UNROUTED
from router.timing import COMMIT_S
from spool.errors import MarksFailed
from spool.format.wire import Reason, encode
from spool.index.segment_list import SegmentList
from spool.marks.discarded import Changes
from spool.marks.marks import Marks
from spool.shared.state import Field
from tests.router.fake import Clock
from tests.spool.rig import Rig
from tests.spool.stored import lost_of

OPEN, TAKEN, RESOLVED = range(3)


def array(sequences: Sequence[int]) -> np.ndarray:
    """As the router gives them."""
    return np.array(sequences, np.int64)


class Desk:
    """A spool of several segments, numbered with a gap, and the acks over it."""

    def __init__(self, *, gap: bool = False, frames: int = 12) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="bruce-acks-", dir="/dev/shm"))
        self.rig = Rig(self.directory)
        self.clock = Clock()
        self.sequences: list[int] = []
        self.fill(frames)
        if gap:
            self.rig.lose_power(random.Random(1))
            self.rig.open()
            self.sequences = [sequence for sequence, _ in self.rig.records()]
            self.fill(frames)
        self.open()

    def fill(self, frames: int, messages: int = 20) -> None:
        """Append frames; about four fill a segment."""
        for _ in range(frames):
            first = self.rig.append([encode(b"t", b"v" * 60)] * messages)
            self.sequences += range(first, first + messages)
            self.rig.step()

    def open(self) -> None:
        self.segment_list = SegmentList(self.rig.layout)
        self.marks = Marks(self.rig.layout.delivery, SegmentList(self.rig.layout))
        self.acks = Acks(self.marks, self.segment_list, clock=self.clock)

    def reopen(self) -> None:
        """The deliverer dies, and starts again."""
        self.acks.close()
        self.marks.close()
        self.open()

    def close(self) -> None:
        self.acks.close()
        self.marks.close()
        self.rig.crash()
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
            lmdb.open(str(self.rig.layout.delivery), max_dbs=8, map_size=1 << 30) as env,
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
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    """Without and with an epoch between two segments."""
    made = Desk(gap=request.param)
    yield made
    made.close()


def test_the_floor_is_the_lowest_unresolved(desk: Desk) -> None:
    """Outcomes out of order raise it only when they close the gap, across segments, and to the end."""
    everything = desk.sequences
    desk.acks.take(array(everything))
    desk.acks.resolve(array(everything[1:]))
    assert desk.commit() == 0
    desk.acks.resolve(array(everything[:1]))
    assert desk.commit() == everything[-1] + 1
    assert desk.acks._segments.keys() <= {desk.segment_list.segments[-1].first_sequence}
    desk.reopen()
    assert desk.acks.low_watermark == everything[-1] + 1
    assert desk.marks.outcomes().resolved == len(everything)


def test_what_is_not_committed_is_forgotten(desk: Desk) -> None:
    """And only that: a restart sends again what was resolved since the last commit, and what was taken."""
    first, second, third = desk.sequences[::3], desk.sequences[1::3], desk.sequences[2::3]
    desk.acks.take(array(desk.sequences))
    desk.acks.resolve(array(first))
    desk.commit()
    desk.acks.resolve(array(second))
    desk.reopen()
    assert desk.open_ones() == sorted(second + third)


def test_given_back_is_open_again(desk: Desk) -> None:
    """Taken messages are not open, failed ones are."""
    desk.acks.take(array(desk.sequences))
    assert desk.open_ones() == []
    desk.acks.give_back(array(desk.sequences[5:9]))
    assert desk.open_ones() == desk.sequences[5:9]


def test_a_discard_counts_once(desk: Desk) -> None:
    """However often it is found again: by the other reader, and after a restart."""
    lost = desk.sequences[3:8]
    assert desk.acks.discard(array(lost[:3]), Reason.DAMAGED, b"t") == 3
    assert desk.acks.discard(array(lost[3:]), Reason.DAMAGED, b"u") == 2
    assert desk.acks.discard(array(lost), Reason.DAMAGED, b"t") == 0
    desk.commit()
    desk.reopen()
    assert desk.acks.discard(array(lost + desk.sequences[8:9]), Reason.DAMAGED, b"u") == 1
    desk.commit()
    counts = {d.topic: d.count for d in desk.marks.discards()}
    assert counts == {b"t": 3, b"u": 3}
    assert lost_of(desk.marks) == dict.fromkeys(desk.sequences[3:9], int(Reason.DAMAGED))
    assert desk.marks.outcomes().resolved == 6


def test_it_is_due_after_its_time(desk: Desk) -> None:
    """Not without a change, not before COMMIT_S is over."""
    desk.clock.now += 10
    assert not desk.acks.due()
    desk.commit()
    desk.acks.resolve(array(desk.sequences[:1]))
    assert not desk.acks.due()
    desk.clock.now += COMMIT_S
    assert desk.acks.due()


def test_a_burst_is_due_at_once(desk: Desk) -> None:
    """After so many messages, since a restart sends again all without a mark; each write counts from zero."""
    desk.acks.close()
    desk.acks = Acks(desk.marks, desk.segment_list, burst=10, clock=desk.clock)
    desk.acks.resolve(array(desk.sequences[:9]))
    desk.acks.resolve(array(desk.sequences[:9]))
    assert not desk.acks.due()
    desk.acks.resolve(array(desk.sequences[9:10]))
    assert desk.acks.due()
    desk.commit()
    desk.acks.resolve(array(desk.sequences[10:19]))
    assert not desk.acks.due()


def test_resolved_above_the_floor(desk: Desk) -> None:
    """The messages that wait are those stored above the floor, less these."""
    desk.acks.resolve(array([*desk.sequences[:5], *desk.sequences[7:9], *desk.sequences[100:]]))
    desk.commit()
    assert desk.acks.low_watermark == desk.sequences[5]
    assert desk.acks.resolved_above() == len(desk.sequences) - 5 - 93
    desk.acks.resolve(array(desk.sequences))
    desk.commit()
    assert desk.acks.resolved_above() == 0


def test_marks_that_cannot_be_written_are_written_later(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Delivery goes on, says so once, and nothing of what was resolved meanwhile is forgotten."""

    def refuse(_changes: object) -> None:
        raise MarksFailed("no space")

    monkeypatch.setattr(desk.marks, "commit", refuse)
    for sequence in desk.sequences[:5]:
        desk.acks.resolve(array([sequence]))
        desk.acks.discard(array([sequence + 10]), Reason.TOO_LARGE, b"t")
        desk.commit()
    assert len(caplog.records) == 1
    monkeypatch.undo()
    desk.commit()
    desk.reopen()
    assert desk.acks.low_watermark == 5
    assert len(desk.open_ones()) == len(desk.sequences) - 10
    assert sum(d.count for d in desk.marks.discards()) == 5


def test_a_disk_that_stands_still_holds_nobody_up(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """While marks are written, outcomes are taken, the marked low watermark stays, and nothing is due."""
    thaw, commit = Event(), desk.marks.commit

    def stand_still(changes: Changes) -> None:
        assert thaw.wait(60)
        commit(changes)

    monkeypatch.setattr(desk.marks, "commit", stand_still)
    desk.acks.resolve(array(desk.sequences[:5]))
    desk.acks.write_down({})
    desk.acks.resolve(array(desk.sequences[5:9]))
    desk.clock.now += 2 * COMMIT_S
    assert not desk.acks.due()
    assert (desk.acks.low_watermark, desk.acks.marked_watermark) == (5, 0)
    thaw.set()
    assert desk.acks.wait() == 5
    assert desk.acks.due()
    desk.acks.write_down({})
    assert desk.acks.wait() == 9


def test_segments_are_retired_below_the_floor(desk: Desk) -> None:
    """Their marks go, their totals stay; without any marks their name says that they were delivered."""
    count = len(desk.sequences) * 2 // 3
    desk.acks.resolve(array(desk.sequences[:count]))
    low_watermark = desk.commit()
    assert low_watermark == desk.sequences[count]
    desk.rig.shared.words[Field.LOW_WATERMARK] = low_watermark
    desk.rig.step()
    desk.reopen()
    assert len(desk.segment_list.sent) >= 2
    assert desk.open_ones() == desk.sequences[count:]
    for table in (b"floor", b"mark", b"offset"):
        desk.damage(table)
    first = desk.segment_list.segments[len(desk.segment_list.sent)].first_sequence
    assert desk.acks.low_watermark == first
    assert desk.open_ones() == [s for s in desk.sequences if s >= first]


# -- the marks suffer ----------------------------------------------------------------------------------


def deliver_some(desk: Desk) -> tuple[list[int], list[int]]:
    """Resolve the first 30 and every third behind; (resolved, open)."""
    done = desk.sequences[:30] + desk.sequences[30::3]
    desk.acks.resolve(array(done))
    desk.commit()
    return done, sorted(set(desk.sequences) - set(done))


def test_marks_lost_and_offsets_kept(desk: Desk) -> None:
    """The lowest offset is where to begin; everything above is sent again."""
    _, left = deliver_some(desk)
    desk.damage(b"mark")
    desk.damage(b"floor")
    assert desk.acks.low_watermark == left[0]
    assert desk.open_ones() == [s for s in desk.sequences if s >= left[0]]


def test_offsets_lost_and_marks_kept(desk: Desk) -> None:
    """Nothing is sent again that was marked."""
    _, left = deliver_some(desk)
    desk.damage(b"offset")
    assert desk.acks.low_watermark == left[0]
    assert desk.open_ones() == left


def test_both_lost(desk: Desk) -> None:
    """Everything is sent again."""
    deliver_some(desk)
    for table in (b"mark", b"floor", b"offset"):
        desk.damage(table)
    assert desk.acks.low_watermark == 0
    assert desk.open_ones() == desk.sequences


def test_one_damaged_offset_makes_the_others_worthless(desk: Desk) -> None:
    """The one that cannot be read could be the lowest: then it is sent again from the start."""
    desk.acks.resolve(array(desk.sequences[:40]))
    desk.acks.write_down({UNROUTED: 100, 1: 60, 2: 40})
    desk.acks.wait()
    desk.damage(b"floor")
    assert desk.acks.low_watermark == 40
    desk.damage(b"floor")
    desk.damage(b"offset", "value")
    assert desk.acks.low_watermark == 0


def test_what_is_left_out_is_found_again(desk: Desk) -> None:
    """It is neither sent nor resolved; a successor finds it open, with nothing but the offsets left, too."""
    desk.acks.resolve(array(range(30)))
    desk.acks.leave_out(array(range(20, 60)))
    assert desk.open_ones() == desk.sequences[60:]
    desk.acks.resolve(array(desk.sequences[60:]))
    desk.acks.write_down({UNROUTED: desk.sequences[-1] + 1, 1: desk.sequences[-1] + 1})
    desk.acks.wait()
    assert desk.marks.offsets()[UNROUTED] == 30
    desk.reopen()
    assert desk.open_ones() == list(range(30, 60))


def test_offsets_of_brokers_that_are_gone_are_forgotten(desk: Desk) -> None:
    """They would keep a lost low watermark low for ever."""
    desk.acks.write_down({UNROUTED: 5, 7: 1})
    desk.acks.wait()
    desk.acks.write_down({UNROUTED: 9, 8: 3})
    desk.acks.wait()
    assert desk.marks.offsets() == {UNROUTED: 9, 8: 3}


@pytest.mark.parametrize("change", ["value", "key"])
@pytest.mark.parametrize("table", [b"floor", b"mark", b"offset", b"discard", b"gone"])
def test_damaged_rows_are_not_believed(desk: Desk, table: bytes, change: str) -> None:
    """A flipped bit anywhere in a row makes it "not delivered": no open message is ever taken for done."""
    done, left = deliver_some(desk)
    for sequence, topic in zip(left[:4], [b"t", b"u", b"v", b"w"], strict=True):
        desk.acks.discard(array([sequence]), Reason.TOO_LARGE, topic)
    desk.commit()
    for seed in range(3):
        assert desk.damage(table, change, seed) or seed
    assert set(desk.open_ones()) >= set(left[4:])
    assert set(desk.open_ones()) <= set(left) | set(done)
    assert sum(d.count for d in desk.marks.discards()) <= 4
    assert set(lost_of(desk.marks)) <= set(left[:4])


def test_every_bit_of_a_mark_is_checked(desk: Desk) -> None:
    """Byte by byte: a low watermark row with any bit changed does not count."""
    deliver_some(desk)
    with desk.marks._env.begin() as txn:
        row = txn.get(b"floor", db=desk.marks._db[b"floor"])
    assert desk.marks._sequence(b"floor", row) == desk.acks.low_watermark
    for at in range(len(row)):
        for bit in range(8):
            changed = bytearray(row)
            changed[at] ^= 1 << bit
            assert desk.marks._sequence(b"floor", bytes(changed)) is None
    assert desk.marks._sequence(b"floor", row[:-1]) is None


def test_an_older_snapshot_of_delivery(desk: Desk) -> None:
    """Messages delivered since are sent again, and nothing else."""
    first = desk.sequences[:50:2]
    desk.acks.resolve(array(first))
    desk.commit()
    desk.marks.close()
    snapshot = desk.directory / "snapshot"
    shutil.copytree(desk.rig.layout.delivery, snapshot)
    desk.open()
    desk.acks.resolve(array(desk.sequences[:100]))
    desk.commit()
    desk.marks.close()
    shutil.rmtree(desk.rig.layout.delivery)
    shutil.copytree(snapshot, desk.rig.layout.delivery)
    desk.open()
    assert desk.open_ones() == sorted(set(desk.sequences) - set(first))


def test_the_delivery_of_another_spool() -> None:
    """Also of one that was given this spool's uuid: nothing counts as delivered."""
    mine, other = Desk(), Desk()
    try:
        other.acks.resolve(array(other.sequences[:100]))
        other.acks.discard(array(other.sequences[100:110]), Reason.TOO_LARGE, b"t")
        other.commit()
        mine.marks.close()
        other.marks.close()
        shutil.rmtree(mine.rig.layout.delivery)
        shutil.copytree(other.rig.layout.delivery, mine.rig.layout.delivery)
        shutil.copy(mine.rig.layout.identity, other.rig.layout.identity)
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


# -- against a model -----------------------------------------------------------------------------------


class AcksModel(RuleBasedStateMachine):
    """A dict of states does the same, and remembers what was committed."""

    def __init__(self) -> None:
        super().__init__()
        self.desk: Desk | None = None

    @initialize(gap=st.booleans())
    def begin(self, *, gap: bool) -> None:
        self.desk = Desk(gap=gap, frames=5)
        self.state = dict.fromkeys(self.desk.sequences, OPEN)
        self.on_disk = dict(self.state)
        self.discards = self.discards_on_disk = 0

    @property
    def live(self) -> Desk:
        assert self.desk
        return self.desk

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
        self.live.rig.shared.words[Field.LOW_WATERMARK] = self.live.acks.low_watermark
        self.live.rig.step()

    @rule()
    def crash(self) -> None:
        self.live.reopen()
        self.state = {s: RESOLVED if now == RESOLVED else OPEN for s, now in self.on_disk.items()}
        self.discards = self.discards_on_disk
        outcomes = self.live.marks.outcomes()
        assert outcomes.resolved == sum(state == RESOLVED for state in self.state.values())
        assert sum(d.count for d in outcomes.discarded) == self.discards

    @precondition(lambda self: self.desk is not None)
    @invariant()
    def agrees(self) -> None:
        assert self.live.open_ones() == [s for s, state in self.state.items() if state == OPEN]

    def teardown(self) -> None:
        if self.desk:
            self.crash()
            self.agrees()
            self.desk.close()


AcksModel.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAcksModel = AcksModel.TestCase
