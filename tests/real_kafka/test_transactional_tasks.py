"""Behind a job that delivered exactly once and died: its commits are known, and it commits no more."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from dispatch.client import KafkaClient
from dispatch.errors import Unreachable
from dispatch.options import DispatchOptions
from dispatch.transactions.progress import Progress, deliverer, encode
from dispatch.transactions.progress_topic import ProgressPosition, ProgressTopic
from tests.daemon import RunningBruce, consume
from tests.real_kafka.test_exactly_once import EXACTLY_ONCE, PATIENCE_S, check_once, create
from tests.real_kafka.transactional_task import MESSAGES, PARTITIONS, start
from tests.router.outlet import keyed, numbers
from tools.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.real_kafka, pytest.mark.crash]

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def parts() -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of a job; none of them outlives a test."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.long
def test_a_daemon_behind_a_dead_job(
    kafka1: KafkaCluster, tmp_path: Path, parts: list[subprocess.Popen[str]]
) -> None:
    """One task died between commit and outcome file; two live on, and know nothing of the job's end.

    One of these has a transaction open, the other has not begun. A consumer at read_committed sees each
    message once, in order: what the first had committed counts as delivered, the others are refused.
    """
    topic = f"tasks-{uuid.uuid4().hex}"
    create(kafka1, topic.encode())
    with RunningBruce(tmp_path, NOWHERE, settings=EXACTLY_ONCE) as bruce:
        bruce.send(keyed(MESSAGES, topic=topic.encode()))
        bruce.await_status(lambda seen: seen.watermarks.synced == MESSAGES, PATIENCE_S)
        bruce.kill9()
        bruce.configure({"kafka": {"bootstrap.servers": kafka1.bootstrap}})

        def begin(*words: object) -> subprocess.Popen[str]:
            parts.append(start(bruce.environ, bruce.spool, kafka1.bootstrap, topic, *words))
            return parts[-1]

        driver = begin("driver")
        assert driver.stdout
        epoch = driver.stdout.readline().strip()
        dead, *zombies = [
            begin("task", number, epoch, w) for number, w in enumerate(("committed", "open", "before"))
        ]
        assert dead.wait(PATIENCE_S) == -signal.SIGKILL
        for zombie in zombies:
            assert os.WIFSTOPPED(os.waitpid(zombie.pid, os.WUNTRACED)[1])
        driver.kill()
        bruce.start()
        bruce.await_status(lambda seen: (seen.delivered, seen.backlog) == (MESSAGES, 0), PATIENCE_S)
        for zombie in zombies:
            zombie.send_signal(signal.SIGCONT)
            assert zombie.communicate(timeout=PATIENCE_S)[0].startswith("refused: ")
        bruce.send(keyed(10, topic=topic.encode(), first=MESSAGES))
        bruce.await_status(lambda seen: seen.delivered == MESSAGES + 10, PATIENCE_S)
        assert not (bruce.spool / "delivery" / "lanes").exists()
        records = consume(kafka1.bootstrap, topic, PARTITIONS, MESSAGES + 10, PATIENCE_S)
    check_once(records, MESSAGES + 10)


@pytest.mark.long
def test_the_copy_of_a_task_that_stands_still(
    kafka1: KafkaCluster, tmp_path: Path, parts: list[subprocess.Popen[str]]
) -> None:
    """It has a transaction open, and the copy does its work; when it goes on it ends well, and sent nothing.

    So does an attempt that begins behind both. A consumer at read_committed sees each message once.
    """
    topic = f"copies-{uuid.uuid4().hex}"
    create(kafka1, topic.encode())
    with RunningBruce(tmp_path, NOWHERE, settings=EXACTLY_ONCE) as bruce:
        bruce.send(keyed(MESSAGES, topic=topic.encode()))
        bruce.await_status(lambda seen: seen.watermarks.synced == MESSAGES, PATIENCE_S)

        def begin(when: str) -> subprocess.Popen[str]:
            parts.append(start(bruce.environ, bruce.spool, kafka1.bootstrap, topic, "task", 0, 1, when))
            return parts[-1]

        slow = begin("open")
        assert os.WIFSTOPPED(os.waitpid(slow.pid, os.WUNTRACED)[1])
        copy = begin("now")
        mine = MESSAGES // PARTITIONS
        assert copy.communicate(timeout=PATIENCE_S)[0] == f"settled {mine}\n"
        slow.send_signal(signal.SIGCONT)
        assert slow.communicate(timeout=PATIENCE_S)[0] == f"settled {mine}\n"
        assert begin("now").communicate(timeout=PATIENCE_S)[0] == f"settled {mine}\n"
        records = consume(kafka1.bootstrap, topic, PARTITIONS, mine, PATIENCE_S)
    assert sorted(numbers(records)) == list(range(0, MESSAGES, PARTITIONS))


@pytest.mark.long
def test_the_open_transaction_of_another_is_not_waited_for(kafka1: KafkaCluster) -> None:
    """Unless a record of ours is behind it: a consumer cannot see before its end whether that counts."""
    name = f"progress-{uuid.uuid4().hex}"
    create(kafka1, name.encode())
    properties = {"bootstrap.servers": kafka1.bootstrap}

    def write(key: str, number: int) -> Producer:
        """A producer with a record in a transaction that is open."""
        producer = Producer({**properties, "transactional.id": f"{name}-{key}", "log_level": "0"})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce(name, encode(Progress(number, 0, deliverer(), [])), key, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        return producer

    with closing(KafkaClient(DispatchOptions(kafka=properties))) as client:
        topic = ProgressTopic(properties, name, b"ours", client.fetch_cluster)
        write("ours", 7).commit_transaction()
        others = write("ours-1", 3)
        last, place = topic.read(ProgressPosition(0, 0))
        assert last
        assert last.number == 7
        write("ours", 8).commit_transaction()
        looked, _ = topic.look(place)
        assert looked is None
        hasty = ProgressTopic(properties, name, b"ours", client.fetch_cluster, read_s=0.5)
        with pytest.raises(Unreachable, match="may be open in it"):
            hasty.read(place)
        others.abort_transaction()
        last, _ = topic.read(place)
        assert last
        assert last.number == 8
