"""Jobs on a standalone cluster: executors and drivers die in the middle, and copies of tasks run."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from confluent_kafka import Message

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from spool.layout import Layout
from tests.daemon import RunningBruce, consume
from tests.pipeline.packed import pack
from tests.pipeline.standalone import COPIES, LOOK_S, PATIENCE_S, Executor, StandaloneCluster
from tests.router.outlet import check_order, keyed, numbers
from tests.spool.fixture import SpoolFixture
from tools.fleets.records import Recorded, read_recorded
from tools.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.long]

COUNT = 600
PARTITIONS = 4
NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def cluster(requirements: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """One for all: it takes seconds to start."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Two brokers: the first leads all partitions of the topic t but 0."""
    with EmbeddedKafka(brokers=2, topics=[("t", PARTITIONS)]) as running:
        for partition in range(PARTITIONS):
            running.leader("t", partition, 1 if partition else 2)
        yield running


def is_quick(number: int) -> bool:
    """Whether a message is of a partition that the first broker leads."""
    return number % 12 % PARTITIONS > 0


def ports(kafka: EmbeddedKafka) -> set[int]:
    """The ports of its brokers."""
    return {int(server.rpartition(":")[2]) for server in kafka.bootstrap_servers.split(",")}


def await_recorded(layout: Layout, wanted: set[int]) -> None:
    """Wait until all of these are written down."""
    numbers = np.array(sorted(wanted), np.int64)
    wait_until(lambda: not read_recorded(layout).lacks(numbers).any(), PATIENCE_S, "outcomes", pause_s=LOOK_S)


class Moment(NamedTuple):
    """The time when a copy of a task began, or a process died."""

    sent: int
    """Messages that were there, about to be delivered or delivered."""
    recorded: Recorded


def check_duplicates(records: Sequence[Message], moments: Sequence[Moment]) -> None:
    """A message came once, and at most once more for each moment at which it was not written down."""
    for number, copies in Counter(numbers(records)).items():
        there = [moment.recorded for moment in moments if number < moment.sent]
        assert copies <= 1 + sum(bool(recorded.lacks(np.array([number]))) for recorded in there), number


def test_an_executor_dies_in_a_drain(
    cluster: StandaloneCluster, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Killed with a part delivered and written down, the rest waiting for its broker: another goes on.

    None is lost, order is kept, recorded messages do not come again, and a daemon has nothing to send.
    """
    with RunningBruce(tmp_path, NOWHERE) as bruce:
        bruce.send(keyed(COUNT))
        bruce.await_status(lambda seen: seen.watermarks.synced == COUNT)
        bruce.kill9()
        bruce.configure({"kafka": {"bootstrap.servers": kafka.bootstrap_servers}})
        layout = Layout(bruce.spool)
        kafka.down(2)
        # One task has it all: the next attempt comes by the messages that the first has delivered.
        alone = {"spark.sql.shuffle.partitions": "1", "spark.cores.max": "1"}
        with cluster.job("drain", "--json", conf=alone, environ=bruce.environ) as job:
            await_recorded(layout, set(filter(is_quick, range(COUNT))))
            (sender,) = cluster.await_executors(1, lambda one: one.sends_to(ports(kafka)))
            sender.kill()
            death = Moment(COUNT, read_recorded(layout))
            kafka.up(2)
            done = json.loads(job.result())
        assert (done["messages"], done["delivered"], done["left"]) == (COUNT, COUNT, 0)
        drained = consume(kafka.bootstrap_servers, "t", PARTITIONS, COUNT)
        check_duplicates(drained, [death])
        bruce.start()
        bruce.send(keyed(10, first=COUNT))
        bruce.await_status(lambda seen: (seen.received, seen.backlog) == (COUNT + 10, 0))
    records = consume(kafka.bootstrap_servers, "t", PARTITIONS, len(drained) + 10)
    check_order(records)
    assert set(numbers(records)) == set(range(COUNT + 10))
    assert len(records) == len(drained) + 10


def test_a_run_whose_tasks_are_copied_and_whose_processes_die(
    cluster: StandaloneCluster, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Two copies of a task deliver; of two others one dies with its executor; then the driver dies.

    `brucectl spark run`, started again, delivers the rest: none is lost, and order is kept. A message comes
    twice only if it was not written down when a copy began or a process died.
    """
    settings = {"dispatch": {"engine": "spark"}}
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings) as bruce:
        layout = Layout(bruce.spool)
        with cluster.job("run", conf=COPIES, environ=bruce.environ) as job:
            story = Story(cluster, kafka, bruce)
            story.send_and_await_copies()
            kafka.up(2)
            story.await_delivered()
            doomed, _ = story.send_and_await_copies()
            doomed.kill()
            story.note(read_recorded(layout))
            kafka.up(2)
            story.await_delivered()
            story.send_and_await_copies()
            job.kill()
        cluster.await_idle()
        story.note(read_recorded(layout))
        kafka.up(2)
        with cluster.job("run", conf={"spark.cores.max": "1"}, environ=bruce.environ):
            story.await_delivered()
        records = consume(kafka.bootstrap_servers, "t", PARTITIONS, story.sent)
    assert set(numbers(records)) == set(range(story.sent))
    check_order(records)
    check_duplicates(records, story.moments)


class Story:
    """The events of one spool."""

    def __init__(self, cluster: StandaloneCluster, kafka: EmbeddedKafka, bruce: RunningBruce) -> None:
        self._cluster, self._kafka, self._bruce = cluster, kafka, bruce
        self._layout = Layout(bruce.spool)
        self.sent = 0
        self.moments: list[Moment] = []

    def note(self, recorded: Recorded) -> None:
        """Note one more moment."""
        self.moments.append(Moment(self.sent, recorded))

    def await_delivered(self) -> None:
        """Wait until the marks have all of them."""
        self._bruce.await_status(lambda seen: (seen.delivered, seen.backlog) == (self.sent, 0), PATIENCE_S)

    def send_and_await_copies(self) -> list[Executor]:
        """With the second broker away: the two executors that then wait with the same messages."""
        old, before = self._cluster.copied(), [read_recorded(self._layout)]
        self._kafka.down(2)
        # The first one is of a partition that has to wait: a batch need not have them all.
        self.sent += self._bruce.send(keyed(COUNT, first=self.sent))

        def look() -> bool:
            before.append(read_recorded(self._layout))
            return self._cluster.copied() not in {None, old}

        wait_until(look, PATIENCE_S, "a copy of a task", pause_s=LOOK_S)
        # The last look was behind the copy's beginning, the one before it was not.
        self.note(before[-2])
        return self._cluster.await_executors(2, lambda one: one.sends_to(ports(self._kafka)))


def test_an_executor_dies_in_an_archive(
    cluster: StandaloneCluster, spool: SpoolFixture, tmp_path: Path
) -> None:
    """Killed with tasks done, while another hangs in the middle of one: each message comes in once."""
    parquet = pytest.importorskip("pyarrow.parquet")
    count = 800
    for first in range(0, count, 50):
        spool.append([encode(b"t", b"%d" % i + bytes(90)) for i in range(first, first + 50)])
    spool.step()
    target = tmp_path / "archive"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BRUCE_")}
    arguments = ("archive", spool.options.directory, "--to", target, "--json")
    with cluster.job(*arguments, environ=environ) as job:
        busy, still = cluster.await_executors(2, lambda one: one.is_registered)
        still.freeze()
        wait_until(lambda: busy.logged("Finished task") >= 3, PATIENCE_S, "tasks to end", pause_s=LOOK_S)
        assert job.runs
        busy.kill()
        still.thaw()
        done = json.loads(job.result())
    assert (done["messages"], done["unreadable"]) == (count, 0)
    rows = parquet.read_table(target, columns=["sequence"])
    assert sorted(rows["sequence"].to_pylist()) == list(range(count))


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A folder with an environment as an archive, and unpacked, for the driver."""
    archive = pack(tmp_path)
    (tmp_path / "bruce").mkdir()
    subprocess.run(["tar", "-xzf", archive, "-C", tmp_path / "bruce"], check=True)
    return tmp_path


def test_an_environment_that_goes_along(
    cluster: StandaloneCluster, kafka: EmbeddedKafka, packed: Path, tmp_path: Path
) -> None:
    """Executors on hosts without bruce deliver: Python loads packages from where Spark unpacked them."""
    with RunningBruce(tmp_path, NOWHERE) as bruce:
        bruce.send(keyed(COUNT))
        bruce.await_status(lambda seen: seen.watermarks.synced == COUNT)
        bruce.kill9()
        bruce.configure({"kafka": {"bootstrap.servers": kafka.bootstrap_servers}})
        kafka.down(2)
        along = {
            "spark.archives": f"{packed}/bruce.tar.gz#bruce",
            "spark.pyspark.python": "./bruce/bin/python",
        }
        conf = {"spark.sql.shuffle.partitions": "1", "spark.cores.max": "1", **along}
        with cluster.job("drain", "--json", conf=conf, environ=bruce.environ, cwd=packed) as job:
            (sender,) = cluster.await_executors(1, lambda one: one.sends_to(ports(kafka)))
            loaded = sender.loaded(ports(kafka))
            kafka.up(2)
            done = json.loads(job.result())
    assert (done["messages"], done["delivered"], done["left"]) == (COUNT, COUNT, 0)
    assert "librdkafka" in str(loaded)
    assert [path for path in loaded if not path.is_relative_to(cluster.directory)] == []
    records = consume(kafka.bootstrap_servers, "t", PARTITIONS, COUNT)
    assert sorted(numbers(records)) == list(range(COUNT))
