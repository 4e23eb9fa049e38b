"""Messages that Kafka will never take: to the dead-letter topic, else to the discard file, else counted."""

from __future__ import annotations

import errno
import itertools
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dispatch.errors import Code
from dispatch.records import Letters
from router.context import LogReader
from router.outcomes.rejects import ROW, LogContents, Rejection, RejectTable
from router.timing import DECLINED_S
from spool.errors import ReadFailed
from spool.format.batch import Batch, Topics
from spool.format.wire import DEAD_LETTERED, Reason, encode
from spool.marks.discard_file import DiscardFile, Records, read_discard_file
from spool.read.reader import Unread
from tests.router.bench import Bench
from tests.router.fake import BITTER, HUGE, POISON

DEAD = b"dead"


@contextmanager
def made(
    *, topic: bytes = DEAD, file: DiscardFile | None = None, grace_s: float = 60.0, **bounds: int
) -> Iterator[Bench]:
    """A bench with topics `a` and `b`, and the dead-letter topic. `bounds`: of Rejection."""
    bench = Bench(rejection=Rejection(topic, file, bytes(16), grace_s, **bounds))
    bench.kafka.leaders = {b"a": [1, 2, 3], b"b": [1, 2], DEAD: [1, 2, 3]}
    try:
        yield bench
    finally:
        bench.close()


@pytest.fixture
def dead() -> Iterator[Bench]:
    """With a dead-letter topic."""
    with made() as bench:
        yield bench


@pytest.fixture
def file(tmp_path: Path) -> DiscardFile:
    """A discard file."""
    return DiscardFile(tmp_path / "discards", 1 << 20)


def letters(bench: Bench) -> dict[int, dict[bytes, bytes]]:
    """Sequence -> headers of the dead letters; their values and keys are as they must be."""
    found = {}
    for letter in bench.kafka.letters:
        topic, key, value = bench.sent[letter.sequence]
        assert letter.value == encode(topic, value, partition_key=key, timestamp=1)
        assert letter.key is None
        found[letter.sequence] = dict(letter.headers)
    return found


def test_refused_messages_are_dead_lettered(dead: Bench) -> None:
    """By the broker or by the client: the datagram as it came, and why; all others are delivered."""
    for _ in range(4):
        dead.send([(b"a", 1, b""), (b"a", 1, POISON), (b"b", None, HUGE), (b"a", 1, b"x")] * 3)
    dead.settle()
    dead.check_complete()
    bad = {s: value for s, (_, _, value) in dead.sent.items() if value in (POISON, HUGE)}
    found = letters(dead)
    assert found.keys() == bad.keys()
    reasons = {POISON: Reason.INVALID_RECORD, HUGE: Reason.TOO_LARGE}
    assert dead.discarded() == {s: reasons[v] | DEAD_LETTERED for s, v in bad.items()}
    for sequence, headers in found.items():
        assert headers[b"bruce-reason"] == reasons[bad[sequence]].name.lower().encode()
        assert headers[b"bruce-topic"] == dead.sent[sequence][0]
        assert 0 < int(headers[b"bruce-first-attempt"]) <= int(headers[b"bruce-last-attempt"])
    dead.check_order()


def test_all_discards_are_said_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Those of the last seconds, too: the next start does not know that no line counts them."""
    with made(topic=b"") as bench:
        for _ in range(3):
            bench.send([(b"a", 1, HUGE)])
            bench.settle()
    found = [line.partition(" from ")[0] for line in caplog.messages if " discarded: too_large" in line]
    assert found == ["1 message", "2 messages"]


def test_an_unknown_topic_is_dead_lettered_after_its_grace_time() -> None:
    """However long that is; and what comes later at once."""
    with made(grace_s=5.0) as bench:
        bench.kafka.denied = {b"gone": 3}
        bench.send([(b"gone", None, b"1"), (b"a", 1, b"")] * 5)
        bench.step(5)
        bench.clock.now += 4
        bench.metadata.pending = True
        bench.step(5)
        bench.answer()
        bench.step(2)
        assert bench.kafka.letters == []
        bench.clock.now += 1
        bench.metadata.pending = True
        bench.settle()
        bench.send([(b"gone", None, b"2")])
        bench.settle()
        assert sorted(letters(bench)) == [0, 2, 4, 6, 8, 10]
        assert set(bench.discarded().values()) == {Reason.UNKNOWN_TOPIC | DEAD_LETTERED}
        bench.check_complete()


def test_others_do_not_wait_for_dead_letters(dead: Bench) -> None:
    """The brokers of the dead-letter topic hang: all other messages are delivered; these follow later."""
    dead.kafka.leaders[DEAD] = [3]
    dead.kafka.down = {3}
    dead.kafka.leaders[b"a"] = [1, 2, 1]
    dead.send([(b"a", key, POISON if key == 2 else b"") for key in range(6)] * 6)
    for _ in range(200):
        dead.step()
        dead.answer()
        dead.clock.now += 0.1
    good = [s for s, (_, _, value) in dead.sent.items() if not value]
    assert sorted(set(dead.appended())) == good
    dead.router.commit()
    assert dead.discarded() == {}
    assert dead.marks
    assert min(dead.marks.offsets().values()) == 2
    dead.kafka.down = set()
    dead.settle()
    assert len(letters(dead)) == 6
    dead.check_complete()


def test_a_letter_that_is_refused_too(dead: Bench) -> None:
    """It alone is discarded, for the reason that it had; those in its batch are not."""
    dead.kafka.leaders[DEAD] = [1]
    dead.send([(b"a", key, POISON + (BITTER if key == 3 else b"")) for key in range(6)])
    dead.send([(b"a", 1, HUGE + BITTER)])
    dead.settle()
    assert sorted(letters(dead)) == [0, 1, 2, 4, 5]
    found = dead.discarded()
    assert found.pop(6) == Reason.TOO_LARGE
    assert found.pop(3) == Reason.INVALID_RECORD
    assert set(found.values()) == {Reason.INVALID_RECORD | DEAD_LETTERED}


def test_a_full_queue_is_no_trouble(dead: Bench) -> None:
    """The worker tries letters again shortly that a window, or librdkafka's queue, has no room for."""
    dead.send([(b"no name", 1, b""), (b"no name", 2, b"")] * 3)
    dead.kafka.full = True
    for _ in range(100):
        dead.step()
        dead.clock.now += 0.01
    assert dead.kafka.letters == []
    assert dead.router._trouble._complaints == {}
    dead.kafka.full = False
    begun = dead.clock.now
    while not dead.router.in_flight():
        dead.step(1)
        dead.clock.now += 0.01
    assert dead.clock.now - begun <= DECLINED_S + 0.02
    dead.settle()
    assert len(letters(dead)) == 6


@pytest.mark.sample(one_of=3)
@pytest.mark.parametrize("seed", range(12))
def test_killed_in_the_middle(seed: int) -> None:
    """Between the letter's acknowledgement and its mark, or before: it is sent again, and none is lost."""
    chance = random.Random(seed)
    with made() as bench:
        for _ in range(3):
            bench.send([(b"a", 1, POISON if chance.random() < 0.3 else b"") for _ in range(12)])
        for _ in range(chance.randint(1, 12)):
            bench.step(chance.randint(1, 40))
            bench.answer(chance.randint(1, 9))
            bench.clock.now += chance.random()
            if chance.random() < 0.3:
                bench.restart(chance)
        bench.settle()
        bad = {s for s, (_, _, value) in bench.sent.items() if value}
        assert set(letters(bench)) == bad
        assert set(bench.discarded()) == bad
        bench.check_complete()


def test_an_acknowledged_letter_without_its_mark_is_sent_again(dead: Bench) -> None:
    """Killed right behind the acknowledgement: twice in the dead-letter topic, counted once."""
    dead.send([(b"a", 1, POISON)])
    for _ in range(300):
        dead.step()
        dead.answer()
        dead.clock.now += 0.1
        if dead.kafka.letters:
            break
    dead.restart()
    dead.settle()
    assert [letter.sequence for letter in dead.kafka.letters] == [0, 0]
    assert [(d.reason, d.count) for d in dead.outcomes().discarded] == [
        (Reason.INVALID_RECORD | DEAD_LETTERED, 1)
    ]


def test_a_finished_producer_loses_no_letter(dead: Bench) -> None:
    """Dead letters in flight have no report: another producer sends them."""
    dead.send([(b"a", 1, POISON), (b"a", 1, b"")])
    for _ in range(300):
        dead.step()
        dead.pool.answer(1, 1)
        dead.clock.now += 0.1
        if dead.router._rejects._posted:
            break
    dead.pool.client.finish()
    dead.settle()
    assert set(letters(dead)) == {0}
    dead.check_complete()


def test_no_dead_letter_topic_yet(dead: Bench) -> None:
    """They wait, and the trouble says for what; nothing else waits."""
    del dead.kafka.leaders[DEAD]
    dead.kafka.denied = {DEAD: 3}
    dead.send([(b"a", 1, POISON), (b"a", 1, b"")] * 3)
    for _ in range(100):
        dead.step()
        dead.answer()
        dead.clock.now += 0.5
    assert sorted(set(dead.appended())) == [1, 3, 5]
    words = "Kafka does not know the dead-letter topic dead: create it; 3 messages wait for it"
    assert dead.router._trouble._complaints == {"dead letters": words}
    # Should the marks be lost, the offsets lead back to them.
    assert len(dead.pool.partitions.held()) == 0
    assert not dead.router.in_flight()
    dead.router.commit()
    assert dead.marks
    assert min(dead.marks.offsets().values()) == 0
    dead.kafka.leaders[DEAD] = [1]
    dead.metadata.pending = True
    dead.settle()
    assert len(letters(dead)) == 3
    assert dead.router._trouble._complaints == {}


def test_more_than_are_kept_in_mind() -> None:
    """Messages beyond the limit come by again; all are dead-lettered, and others go on meanwhile."""
    with made(grace_s=1.0, most=6) as bench:
        bench.kafka.denied = {b"gone": 3}
        bench.kafka.leaders[DEAD] = [3]
        bench.kafka.down = {3}
        bench.kafka.leaders[b"a"] = [1, 2]
        bench.send([(b"gone", 1, b"1"), (b"a", 1, b"")] * 20)
        bench.send([(b"a", 0, POISON), (b"a", 1, b"")] * 8)
        for _ in range(300):
            bench.step()
            bench.answer()
            bench.clock.now += 0.1
            bench.metadata.pending = True
        good = {s for s, (topic, _, value) in bench.sent.items() if topic == b"a" and not value}
        assert set(bench.appended()) == good
        bench.kafka.down = set()
        bench.settle()
        assert set(letters(bench)) == set(bench.sent) - good
        bench.check_complete()


def test_others_go_between_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step hands over few of them, however many there are: what is behind them is not held up."""
    with made(posted_at_once=3) as bench:
        bench.send([(b"no name", 1, b"")])
        bench.settle()
        for first in range(0, 300, 10):
            bench.send([(b"no name %d" % n, 1, b"") for n in range(first, first + 10)])
        bench.send([(b"a", 1, b"")])
        posted, post = list[int](), bench.pool.post

        def count(letters: Letters, flats: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
            posted.append(len(letters.rows))
            return post(letters, flats)

        monkeypatch.setattr(bench.pool, "post", count)
        for calls in range(1, 1000):
            bench.step(1)
            assert len(posted) <= calls
            bench.answer()
            if bench.appended():
                break
        assert bench.appended() == [301]
        assert max(posted) == 3
        assert sum(posted) < 200
        bench.settle()
        assert len(letters(bench)) == 301
        bench.check_complete()


def test_messages_for_the_dead_letter_topic_are_none_themselves(dead: Bench) -> None:
    """They would go in a circle."""
    dead.send([(DEAD, 1, POISON), (DEAD, 1, b"")])
    dead.settle()
    assert dead.kafka.letters == []
    assert dead.discarded() == {0: Reason.INVALID_RECORD}


def test_the_discard_file_has_what_was_discarded(file: DiscardFile) -> None:
    """The datagrams as they came, on disk before they count."""
    with made(topic=b"", file=file, grace_s=0.0) as bench:
        bench.kafka.denied = {b"gone": 3}
        bench.send([(b"a", 1, POISON), (b"a", 1, b""), (b"gone", 2, b"1")] * 5)
        bench.settle()
        bench.check_complete()
        found = {one.sequence: one for one in read_discard_file(file.path)}
        assert found.keys() == bench.discarded().keys()
        for sequence, one in found.items():
            topic, key, value = bench.sent[sequence]
            assert one.datagram == encode(topic, value, partition_key=key, timestamp=1)
            assert one.reason == bench.discarded()[sequence]


class Reluctant(DiscardFile):
    """A file that fails, or waits, as the test sets it."""

    error: OSError | None = None

    def __init__(self, path: Path) -> None:
        super().__init__(path, 1 << 20)
        self.go_on = threading.Event()
        self.go_on.set()

    def append(self, records: Records) -> None:
        self.go_on.wait(30)
        if self.error:
            raise self.error
        super().append(records)


def test_nothing_is_discarded_before_the_file_has_it(tmp_path: Path) -> None:
    """While it is being written, and while the disk is full: it waits, says so, and others go on."""
    file = Reluctant(tmp_path / "discards")
    file.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    file.go_on.clear()
    with made(topic=b"", file=file) as bench:
        bench.send([(b"a", 1, POISON), (b"a", 1, b"")] * 3)

        def turn() -> None:
            bench.step()
            bench.answer()
            bench.clock.now += 0.1

        for _ in range(100):
            turn()
        bench.router.commit()
        assert bench.discarded() == {}
        assert sorted(set(bench.appended())) == [1, 3, 5]
        file.go_on.set()
        # By the time of day, since the file has a thread of its own.
        end = time.monotonic() + 60
        while not bench.router._trouble._complaints:
            assert time.monotonic() < end
            turn()
        assert bench.router._trouble._complaints == {
            "discards": f"the discard file {file.path} cannot be written (No space left on device): "
            "make room, or take it out of [dispatch] and restart; 3 messages wait for it"
        }
        bench.router.commit()
        assert bench.discarded() == {}
        file.error = None
        bench.settle()
        assert len(bench.discarded()) == 3
        assert bench.router._trouble._complaints == {}


def test_samples(dead: Bench) -> None:
    """The first bytes of some of the discarded are kept beside their count."""
    with made(topic=b"", grace_s=0.0) as bench:
        bench.kafka.denied = {b"gone": 3}
        bench.send([(b"a", 1, POISON), (b"gone", 2, b"1" * 300)] * 10)
        bench.settle()
        assert bench.marks
        found = bench.marks.samples()
        assert {(s.reason, s.topic) for s in found} == {
            (Reason.INVALID_RECORD, b"a"),
            (Reason.UNKNOWN_TOPIC, b"gone"),
        }
        assert 2 <= len(found) <= 8
        for sample in found:
            topic, key, value = bench.sent[sample.sequence]
            assert sample.data == encode(topic, value, partition_key=key, timestamp=1)[:256]


def test_a_topic_that_is_deleted() -> None:
    """Messages in flight, held and behind wait for the grace time, then are given up; others go on."""
    with made(topic=b"", grace_s=20.0) as bench:
        bench.send([(b"a", key, b"") for key in range(6)])
        bench.settle()
        bench.send([*((b"a", key, b"") for key in range(3)), (b"b", 0, b""), (b"a", None, b"")] * 4)
        bench.step(2)
        assert bench.router.in_flight() > 0
        del bench.kafka.leaders[b"a"]
        bench.kafka.denied = {b"a": 3}
        bench.metadata.pending = True
        bench.step(2)
        topics: Topics = bench.topics
        for flat in range(bench.pool.partitions.count):
            if topics.names[bench.pool.partitions.rows["topic"][flat]] == b"a":
                bench.pool.fail(flat, 100, Code.UNKNOWN_TOPIC)
        bench.send([(b"a", 1, b""), (b"a", None, b""), (b"b", 1, b"")] * 3)
        for _ in range(20):
            bench.step()
            bench.answer()
            bench.clock.now += 0.5
        of_b = [s for s, (topic, _, _) in bench.sent.items() if topic == b"b"]
        logs = [log for (topic, _), log in bench.kafka.logs.items() if topic == b"b"]
        assert sorted(itertools.chain(*logs)) == of_b
        bench.router.commit()
        assert bench.discarded() == {}
        bench.clock.now += 20
        bench.metadata.pending = True
        bench.settle()
        late = {s for s, (topic, _, _) in bench.sent.items() if topic == b"a" and s >= 6}
        assert set(bench.discarded()) == late
        assert set(bench.discarded().values()) == {Reason.UNKNOWN_TOPIC}
        bench.check_complete()


@pytest.mark.parametrize("back", [1, 2, 3, 5])
def test_a_topic_that_is_deleted_and_made_anew(back: int) -> None:
    """With as many partitions, more or fewer: what waits goes to those that are there, none is lost."""
    with made(topic=b"") as bench:
        bench.send([(b"a", key, b"") for key in range(6)])
        bench.settle()
        del bench.kafka.leaders[b"a"]
        bench.kafka.denied = {b"a": 3}
        bench.metadata.pending = True
        bench.step(2)
        bench.send([(b"a", key, b"") for key in (0, 1, 2, 3, 4, 5, None, None)] * 3)
        bench.step(20)
        bench.kafka.denied = {}
        bench.kafka.leaders[b"a"] = [1, 2, 3, 1, 2][:back]
        for _ in range(80):
            bench.metadata.pending = True
            bench.clock.now += 1.0
            bench.step()
            bench.answer()
        bench.send([(b"a", key, b"") for key in range(6)])
        bench.settle()
        assert bench.discarded() == {}
        bench.check_complete()
        bench.check_order()
        assert {place for t, place in bench.kafka.logs if t == b"a"} == set(range(max(3, back)))


@pytest.mark.parametrize("behind_a_restart", [False, True])
def test_one_answer_with_fewer_partitions_changes_nothing(*, behind_a_restart: bool) -> None:
    """A broker that lags behind a topic that grew: the same key stays where it was, and nothing is lost.

    Behind a restart the marks know how many there were.
    """
    with made(topic=b"") as bench:
        bench.send([(b"a", key, b"") for key in range(6)])
        bench.settle()
        bench.kafka.leaders[b"a"] = [1, 2]
        if behind_a_restart:
            bench.restart()
        else:
            bench.metadata.pending = True
            bench.step(3)
        bench.send([(b"a", key, b"") for key in range(6)])
        bench.step(20)
        bench.answer()
        bench.clock.now += 5
        bench.kafka.leaders[b"a"] = [1, 2, 3]
        bench.metadata.pending = True
        bench.settle()
        assert bench.discarded() == {}
        bench.check_complete()
        for (_, partition), log in bench.kafka.logs.items():
            assert not log or {bench.sent[s][1] % 3 for s in log} == {partition}  # type: ignore[operator]


def test_killed_between_the_file_and_the_mark(file: DiscardFile) -> None:
    """It is written again, read once, and counted once."""
    with made(topic=b"", file=file) as bench:
        bench.send([(b"a", 1, POISON), (b"a", 1, b"")])
        for _ in range(3000):
            bench.step()
            bench.answer()
            bench.clock.now += 0.1
            if filing := bench.router._rejects._filing:
                filing.task.result(60)
                break
        before = file.path.stat().st_size
        bench.restart()
        assert bench.discarded() == {}
        bench.settle()
        assert file.path.stat().st_size > before
        assert [one.sequence for one in read_discard_file(file.path)] == [0]
        assert [d.count for d in bench.outcomes().discarded] == [1]


@pytest.mark.parametrize("alone", [False, True])
def test_letters_in_flight_when_the_producer_is_finished(dead: Bench, *, alone: bool) -> None:
    """They go again with the new one, as letters: what becomes of their messages is not taken for theirs."""
    dead.kafka.leaders[DEAD] = [3]
    dead.kafka.down = {3}
    dead.kafka.leaders[b"a"] = [1, 2]
    dead.send([(b"a", 1, POISON + BITTER * alone), (b"a", 1, POISON)])
    rejects = dead.router._rejects

    def until(posted: set[int]) -> None:
        for _ in range(400):
            dead.step()
            if set(rejects._posted.sequences.tolist()) == posted:
                return
            dead.answer()
            dead.clock.now += 0.1
        raise AssertionError(rejects._posted.sequences)

    until({0, 1})
    if alone:
        dead.kafka.down = set()
        until({1})
    dead.kafka.down = {1, 2, 3}
    dead.pool.client.finish()
    dead.step()
    dead.clock.now += dead.pool.last_reports_s
    dead.step()
    assert not dead.pool.client.fatal
    dead.kafka.down = set()
    dead.settle()
    assert 1 in letters(dead)
    assert dead.discarded()[1] == Reason.INVALID_RECORD | DEAD_LETTERED
    dead.check_complete()


@pytest.mark.parametrize("dead_letters", [False, True])
def test_messages_that_a_partitioner_cannot_place(*, dead_letters: bool) -> None:
    """They alone are given up, over restarts, too; the worker goes on, and says which function it was."""
    bench = Bench(
        rejection=Rejection(DEAD if dead_letters else b""),
        partitioners={"a": "tests.router.outcomes.test_rejects:by_number"},
    )
    bench.kafka.leaders = {b"a": [1, 2, 3], b"b": [1, 2], DEAD: [1]}
    try:
        for _ in range(3):
            bench.send([(b"a", 1, b""), (b"a", 666, b""), (b"b", 666, b""), (b"a", 5, b"")] * 3)
            bench.step(3)
            bench.restart()
        bench.settle()
        bench.check_complete()
        bad = [s for s, (topic, key, _) in bench.sent.items() if (topic, key) == (b"a", 666)]
        reason = Reason.PARTITIONER | (DEAD_LETTERED if dead_letters else 0)
        assert bench.discarded() == dict.fromkeys(bad, reason)
        assert (
            "tests.router.outcomes.test_rejects:by_number of topic a"
            in bench.router._batches._partitioners.sentence()
        )
        assert [(d.topic, d.reason, d.count) for d in bench.outcomes().discarded] == [
            (b"a", reason, len(bad))
        ]
    finally:
        bench.close()


def by_number(keys: list[bytes | None], numbers: npt.NDArray[np.int32], partitions: int) -> list[int]:
    """A partitioner of a user's own that does not know a certain key."""
    return [{1: 0, 5: 1}[number] % partitions for number in numbers.tolist()]


def test_it_is_what_a_dictionary_would_be() -> None:
    """Each row once, ordered by sequence, for any rows added and taken, in any order."""
    chance, table, model = random.Random(7), RejectTable(), dict[int, int]()
    unused = chance.sample(range(10_000), 3000)
    while unused or model:
        new = [unused.pop() for _ in range(min(len(unused), chance.choice((0, 1, 40))))]
        rows = np.zeros(len(new), ROW)
        rows["sequence"], rows["reason"] = new, [n % 7 for n in new]
        table.add(rows)
        model |= {n: n % 7 for n in new}
        ascending = sorted(model)
        assert table.sequences.tolist() == ascending
        assert len(table) == len(model)
        count = chance.randint(0, min(len(model), 50))
        chosen = ascending[:count] if chance.random() < 0.5 else sorted(chance.sample(ascending, count))
        assert table.rows(np.array(chosen, np.int64))["sequence"].tolist() == chosen
        taken = table.take(np.array(chosen, np.int64))
        assert taken["sequence"].tolist() == chosen
        assert taken["reason"].tolist() == [model.pop(n) for n in chosen]


class Ailing:
    """A reader of the log, of which the disk gives nothing at present."""

    def __init__(self, reader: LogReader) -> None:
        self.reader, self.is_ill = reader, True

    def next(self) -> Batch | None:
        """Pass by what is asked for."""
        return None if self.is_ill else self.reader.next()

    def take_unread(self) -> list[Unread]:
        """All of it."""
        return [Unread(0, 1 << 40, ReadFailed(errno.EIO, "", ""))] if self.is_ill else []

    def __getattr__(self, name: str) -> object:
        return getattr(self.reader, name)


@pytest.mark.parametrize("letters_too", [True, False])
def test_what_the_disk_does_not_give_now_waits(file: DiscardFile, *, letters_too: bool) -> None:
    """It is not damaged: it goes to the dead-letter topic, or the file, when it can be read."""
    with made(topic=DEAD if letters_too else b"", file=file) as bench:
        contents = bench.router._rejects._contents
        assert isinstance(contents, LogContents)
        ill = Ailing(contents._reader)
        contents._reader = ill  # type: ignore[assignment]
        bench.send([(b"a", 1, POISON), (b"a", 1, b"")] * 3)
        for _ in range(100):
            bench.step()
            bench.answer()
            bench.clock.now += 0.1
        bench.router.commit()
        assert bench.discarded() == {}
        ill.is_ill = False
        bench.settle()
        assert len(bench.discarded()) == 3
        assert len(bench.kafka.letters if letters_too else list(read_discard_file(file.path))) == 3
