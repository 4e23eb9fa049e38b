"""Death at every named place, once, and again when its successor comes there: nothing lost, nothing doubled.

One spool lives through all of it, and another through the deaths while packing, which makes room that some
places need not to be there. Messages are sent until the place has killed every process that came there; then
no process dies any more, and all of them must be delivered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from dispatch.embedded import EmbeddedKafka
from spool.format.packed import is_packed
from spool.format.segment_format import HEADER, HEADER_BYTES
from spool.format.wire import Reason
from spool.layout import SEGMENT, SPARE, Layout, segment_name
from spool.log.intake_totals import read_refused
from spool.log.recovery import is_sealed
from spool.native.digest import digest
from spool.shared.ledger import read_ledger
from spool.shared.state import Field, read_shared_state
from spool.storage.failpoint import POINTS
from tests.daemon import halt
from tests.e2e.zygote import WRITE_POINTS, ForkedBruce, failing_sync
from tests.router.outlet import check_order, keyed, numbers

PARTITIONS = 8
PATIENCE_S = 60.0
ROUND, VALUE_BYTES = 120, 3000
"""Messages sent at a time: more than a segment of 256 KiB."""
MOST_ROUNDS = 40

FULL = {"discard.added", "discard.committed"}
PACKING = {"pack.synced", "pack.named"}
"""Places that are come to when something waits for Kafka, and may be packed."""
LENDING = {place for place in POINTS if place.startswith(("lend.", "adopt.", "task."))}
"""Failpoints that only jobs reach: tests/e2e/test_lease.py, tests/cli/daemon/test_delivery_worker.py, and
tests/real_kafka/test_spark_drain.py."""
TRANSACTIONS = {place for place in POINTS if place.startswith("transaction.")}
"""Places that only exactly_once comes to: tests/real_kafka/test_spark_run.py."""
REPAIR = {place for place in POINTS if place.startswith("repair.")}
"""Places that only `brucectl inspect repair` comes to: tests/spool/fsck/test_repair.py."""
REPLAY = {place for place in POINTS if place.startswith("replay.")}
"""Places that only `brucectl replay` comes to: tests/cli/replay/test_state.py."""
POWER = {"file.synced", "file.named", "recover.header", "recover.moving", "recover.torn", "recover.named"}
"""Places that only a start after a power loss comes to."""


class CrashRun:
    """The spool, its Kafka, and what was sent."""

    def __init__(self, directory: Path, *, packing: bool) -> None:
        self.kafka = EmbeddedKafka(brokers=1, topics=[("t", PARTITIONS)])
        self.points = directory / "points"
        settings = {
            "spool": {"max_bytes": 32 * (256 << 10), "recompress": packing},
            "kafka": {"linger.ms": "2"},
        }
        self.bruce = ForkedBruce.of(directory, self.kafka.bootstrap_servers, self.points, settings=settings)
        self.layout = Layout(self.bruce.spool)
        self.sent = self.refused = self.discarded = 0
        self.identities: dict[int, bytes] = {}
        """By number, the `bruce-id` of each message that came to Kafka."""
        servers = {"bootstrap.servers": self.kafka.bootstrap_servers, "fetch.wait.max.ms": 20}
        self._consumer = Consumer({**servers, "group.id": "test", "log_level": 0})
        self._consumer.assign([TopicPartition("t", p, 0) for p in range(PARTITIONS)])

    @property
    def armed(self) -> bool:
        """Whether a process is still to die."""
        return bool(self.points.read_text())

    def send(self) -> None:
        """Send a round to a daemon that lives."""
        self.sent += self.bruce.send(keyed(ROUND, first=self.sent, bytes_each=VALUE_BYTES))
        # Segments that have refused something are carried into the book before they go.
        self.refused += self.bruce.send([b"short"])

    def settle(self) -> None:
        """Wait until everything is delivered or discarded; hold the totals to what was sent."""
        all_sent = self.sent + self.refused
        seen = self.bruce.await_status(lambda s: s.received >= all_sent and s.backlog == 0, PATIENCE_S)
        assert seen.received == all_sent
        assert seen.delivered + sum(seen.discarded.values()) == all_sent
        assert set(seen.discarded) <= {"spool_full", "short"}
        assert seen.discarded.get("short", 0) == self.refused
        assert self.in_rows() == self.refused
        self.discarded = seen.discarded.get("spool_full", 0)
        self.bruce.await_true(lambda: not self.word(Field.FULL), PATIENCE_S)

    def in_rows(self) -> int:
        """The messages refused as too short, by frames and ledger."""
        rows = [*read_refused(self.layout).discards, *read_ledger(self.layout.ledger)]
        return sum(row.count for row in rows if row.reason == Reason.SHORT)

    def word(self, field: Field) -> int:
        """One word of the shared state."""
        words = read_shared_state(next(self.bruce.runtime.glob("*.page")))
        return 0 if words is None else int(words[field])

    def consume(self, first: int, count: int) -> list[Message]:
        """The records from number `first` on, once there are so many different ones, and what comes after."""
        records: list[Message] = []

        def enough() -> bool:
            missing = count - len(set(numbers(records)))
            records.extend(self._identified(first, self._consumer.consume(missing, 1.0) if missing else []))
            return missing <= 0

        self.bruce.await_true(enough, PATIENCE_S)
        while more := self._consumer.consume(10_000, 0.05):
            records += self._identified(first, more)
        return sorted(records, key=lambda record: (record.partition(), record.offset()))

    def _identified(self, first: int, records: list[Message]) -> list[Message]:
        """The records from `first` on; the others are copies of messages sent before."""
        for number, record in zip(numbers(records), records, strict=True):
            identity = dict(record.headers() or [])["bruce-id"]
            assert self.identities.setdefault(number, identity) == identity, f"{number} was stored twice"
        return [record for record in records if numbers([record])[0] >= first]

    def packed(self) -> int:
        """How many of the segments that wait for Kafka are packed."""
        count = 0
        for path in (
            self.layout.segment(*pair) for pair in self.layout.list_segments() if pair[1] == SEGMENT
        ):
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                count += is_packed(file.fileno())
        return count

    def close(self) -> None:
        """End everything."""
        self._consumer.close()
        self.bruce.close()
        self.kafka.close()


FORMS = {"once": 1, "twice": 2}
ALL = sorted((POINTS.keys() | WRITE_POINTS.keys()) - PACKING - LENDING - TRANSACTIONS - REPAIR - REPLAY)


@pytest.fixture(scope="module")
def crash_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashRun]:
    """The one spool."""
    made = CrashRun(tmp_path_factory.mktemp("points"), packing=False)
    yield made
    made.close()


@pytest.fixture(scope="module")
def packing_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashRun]:
    """The other one, whose segments are packed as soon as they are sealed."""
    made = CrashRun(tmp_path_factory.mktemp("packing"), packing=True)
    yield made
    made.close()


def deaths(point: str, times: int) -> list[str]:
    """The failpoints to die at, in order. To salvage a burst, a process must have died with it."""
    if point == "recover.salvaging":
        return ["write.received", *[point] * times]
    return ["write.received", point] * times if point == "recover.salvaged" else [point] * times


def lose_power(crash_run: CrashRun) -> None:
    """End everything as if the host had gone down in the middle of a roll.

    A header rots meanwhile, and the oldest segment gets another name.
    """
    crash_run.bruce.await_status(
        lambda s: (
            s.received == crash_run.sent + crash_run.refused and s.watermarks.written == s.watermarks.accepted
        )
    )
    crash_run.bruce.kill9()
    for name in ("*.page", "*.staging"):
        for path in crash_run.bruce.runtime.glob(name):
            path.unlink()
    named = [crash_run.layout.segment(*pair) for pair in crash_run.layout.list_segments()]
    spares = [crash_run.layout.segment(number, SPARE) for number in crash_run.layout.list_spares()]
    for path in [p for p in named if not is_sealed(p)] + spares:
        header = np.frombuffer(path.read_bytes()[:HEADER_BYTES], HEADER).copy()
        header["boot"] = bytes(range(16))
        header["check"] = digest(header.tobytes()[:-8])
        with path.open("r+b") as file:
            file.write(header.tobytes()[: -9 if path in named[-1:] else None])
    if len(named) > 1:
        named[0].rename(named[0].with_name(segment_name(int(named[0].stem) + 1, named[0].suffix)))


def stop_keeper(crash_run: CrashRun) -> None:
    """From here on the log is written, and neither synced nor named; there are spares for it."""

    def has_spares() -> bool:
        last = crash_run.word(Field.SPARE)
        # Before the ingest worker has a segment, the word for it is 0.
        made = {last - 1, last} <= set(crash_run.layout.list_spares())
        return made and last >= (crash_run.word(Field.WRITTEN) >> 32) + 2

    crash_run.bruce.await_true(has_spares)
    halt(next(w.pid for w in crash_run.bruce.status().workers if w.role == "keeper"))


def pause(crash_run: CrashRun, *, kill: bool) -> None:
    """Let everything be delivered; then perhaps end all processes."""
    crash_run.settle()
    if kill and crash_run.armed:
        # Messages on the way when all processes die are salvaged at the next start.
        crash_run.bruce.kill9()


def provoke(crash_run: CrashRun, point: str) -> None:
    """Send until every process that is to die has died."""
    for turn in range(MOST_ROUNDS):
        if not crash_run.armed:
            return
        if crash_run.bruce.lives or crash_run.bruce.try_start():
            live_on(crash_run, point, turn)
    pytest.fail(f"no process comes to {crash_run.points.read_text().split()}")


def live_on(crash_run: CrashRun, point: str, turn: int) -> None:
    """A round, with what brings a process to the failpoint."""
    losing = point in POWER and turn % 2 == 0
    if losing:
        stop_keeper(crash_run)
    if point.startswith("renew."):
        failing_sync(crash_run.points).touch()
    crash_run.send()
    if losing:
        lose_power(crash_run)
    elif point in PACKING:
        crash_run.send()
        crash_run.bruce.await_true(lambda: not crash_run.armed and crash_run.packed() >= 2, PATIENCE_S)
    elif point not in FULL:
        pause(crash_run, kill=turn % 2 == 1)


def die_and_recover(crash_run: CrashRun, point: str, form: str) -> None:
    """Have them die there; then everything sent is received, and in Kafka, in order, or discarded."""
    first, before = crash_run.sent, crash_run.discarded
    if not crash_run.bruce.lives:
        assert crash_run.bruce.try_start(), "nothing was armed"
    crash_run.points.write_text("".join(f"{place}\n" for place in deaths(point, FORMS[form])))
    if point in FULL | PACKING:
        crash_run.kafka.down()
    provoke(crash_run, point)
    crash_run.kafka.up()
    if not crash_run.bruce.lives:
        assert crash_run.bruce.try_start(), "somebody died who was not told to"
    crash_run.send()
    crash_run.settle()
    count, discarded = crash_run.sent - first, crash_run.discarded - before
    assert not discarded or point in FULL
    records = crash_run.consume(first, count - discarded)
    found = set(numbers(records))
    assert len(found) == count - discarded
    assert found <= set(range(first, crash_run.sent))
    check_order(records)
    assert len(set(crash_run.identities.values())) == len(crash_run.identities), (
        "one number means two messages"
    )
    if count <= 2 * ROUND and point.startswith(("sync.", "seal.", "index.", "roll.", "retire.", "write.")):
        assert len(records) == len(found), "the deliverer lived, and sent again"


@pytest.mark.crash
@pytest.mark.parametrize("form", ["once", pytest.param("twice", marks=pytest.mark.long)])
@pytest.mark.parametrize("point", ALL)
def test_a_death_loses_nothing_and_doubles_nothing(crash_run: CrashRun, point: str, form: str) -> None:
    """Everything sent is received, and in Kafka, in order, or discarded; no number names two messages."""
    die_and_recover(crash_run, point, form)


@pytest.mark.crash
@pytest.mark.parametrize("form", ["once", pytest.param("twice", marks=pytest.mark.long)])
@pytest.mark.parametrize("point", sorted(PACKING))
def test_a_death_while_packing(packing_run: CrashRun, point: str, form: str) -> None:
    """The same of segments that the successor packs while they wait, and that are delivered from there."""
    die_and_recover(packing_run, point, form)
