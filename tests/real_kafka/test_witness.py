"""The witness beside real brokers finds the planted faults exactly, through its own SIGKILLs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic

from spool.format.wire import encode_message
from spool.index.segment_list import SegmentList
from spool.marks.discarded import Changes
from spool.marks.marks import Marks
from tests.daemon import ROOT
from tests.router.outlet import NOW_MS
from tests.spool.fixture import SpoolFixture
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

pytestmark = pytest.mark.real_kafka

MESSAGES, PARTITIONS = 12_000, 6
LOST = {*range(100, 107), 9000}
"""Those in an aborted transaction, and one that was never sent."""
DOUBLED = {500, 501, 502, 11_000}
ALTERED = {5000: "value", 5004: "header", 5006: "time"}
WITHHELD = range(11_500, MESSAGES)
"""They come behind a transaction of somebody else's, which is open for a while."""
PATIENCE_S = 120.0
_BRUCECTL = (sys.executable, "-c", "from cli.app import brucectl; brucectl()")


class Scene:
    """A spool that is delivered by its marks, a topic, and a witness that can be killed."""

    def __init__(self, kafka: KafkaCluster, directory: Path) -> None:
        self.kafka, self.directory = kafka, directory
        self.topic = f"bruce-{uuid.uuid4().hex}"
        make_topics(kafka.bootstrap, [NewTopic(self.topic, PARTITIONS, 3)])
        self.spool = SpoolFixture(directory, segment_bytes=1 << 18, max_bytes=64 << 20)
        for at in range(0, MESSAGES, 50):
            self.spool.append([self.encode(one) for one in range(at, at + 50)])
            self.spool.step()
        self.spool.stop()
        self.deliver(WITHHELD.start)
        self.config = directory / "bruce.toml"
        self.config.write_text(
            f'[spool]\ndirectory = "{self.spool.layout.directory}"\n'
            f'[kafka]\n"bootstrap.servers" = "{kafka.bootstrap}"\n'
            f'[witness]\ndirectory = "{directory / "witness"}"\n'
        )
        self.witness: subprocess.Popen[bytes] | None = None

    def deliver(self, end: int) -> None:
        """Have the marks say that all messages below `end` are delivered."""
        marks = Marks(self.spool.layout.delivery, SegmentList(self.spool.layout))
        marks.commit(Changes(low_watermark=end))
        marks.close()

    def encode(self, number: int) -> bytes:
        """A message of the spool."""
        return encode_message(
            self.topic.encode(),
            b"%d" % number,
            key=b"k",
            timestamp=NOW_MS + number,
            headers=[("n", b"%d" % number)] if number % 3 == 2 else [],
        )

    def send(self, numbers: Iterable[int], producer: Producer | None = None) -> None:
        """Their records, of which some are altered."""
        sending = producer or Producer({"bootstrap.servers": self.kafka.bootstrap, "linger.ms": 5})
        for one in numbers:
            how = ALTERED.get(one, "")
            headers: list[tuple[str, bytes | None]] = [
                ("bruce-id", self.spool.identity.spool + one.to_bytes(8, "big"))
            ]
            if one % 3 == 2 or how == "header":
                headers.append(("n", b"%d" % one))
            sending.produce(
                self.topic,
                b"%d" % one + b"!" * (how == "value"),
                b"k",
                one % PARTITIONS,
                timestamp=NOW_MS + one + (how == "time"),
                headers=headers,
            )
        assert sending.flush(PATIENCE_S) == 0

    def start(self) -> None:
        """Start the witness."""
        command = [*_BRUCECTL, "witness", "run", "--late", "1", "--config", str(self.config)]
        self.witness = subprocess.Popen(command, cwd=ROOT)

    def kill(self) -> None:
        """SIGKILL the witness."""
        assert self.witness is not None
        self.witness.send_signal(signal.SIGKILL)
        self.witness.wait()

    def row(self) -> dict[str, Any]:
        """The spool in the document of the witness; empty before there is one."""
        path = self.directory / "witness/witness.json"
        if not path.exists():
            return {}
        (tier,) = json.loads(path.read_text())["tiers"]
        return {"lag": tier["lag"], "records": tier["records"]} | next(iter(tier["spools"]), {})

    def await_row(self, **wanted: int) -> None:
        """Until the document has these numbers."""
        deadline = time.monotonic() + PATIENCE_S
        while any(self.row().get(name) != value for name, value in wanted.items()):
            assert time.monotonic() < deadline, str(self.row())
            time.sleep(0.2)

    def audit(self, code: int) -> dict[str, Any]:
        """The report of the command, which ends with this code."""
        command = [*_BRUCECTL, "audit", "--witness", "--json", "--config", str(self.config)]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        assert done.returncode == code, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def runs(numbers: Iterable[int]) -> list[list[int]]:
    """[first, last] of each run."""
    found: list[list[int]] = []
    for one in sorted(numbers):
        if found and found[-1][1] == one - 1:
            found[-1][1] = one
        else:
            found.append([one, one])
    return found


def test_planted_faults_are_found(  # noqa: PLR0915  (one story)
    kafka3: KafkaCluster, tmp_path: Path
) -> None:
    """The missing and doubled ones by sequence, altered ones by block, and then message by message.

    Messages in an aborted transaction are missing. Those behind an open one are late, and nothing new is
    judged before it is over. The witness is killed twice, and counts no record twice.
    """
    scene = Scene(kafka3, tmp_path)
    servers = {"bootstrap.servers": kafka3.bootstrap}
    sent = [one for one in range(MESSAGES) if one not in LOST and one not in WITHHELD]
    half = len(sent) // 2
    scene.start()
    try:
        scene.send(sent[:half])
        scene.kill()
        aborted = Producer({**servers, "transactional.id": f"{scene.topic}-aborted"})
        aborted.init_transactions(PATIENCE_S)
        aborted.begin_transaction()
        scene.send(LOST - {9000}, aborted)
        aborted.abort_transaction(PATIENCE_S)
        scene.start()
        scene.send(sent[half:])
        scene.send(DOUBLED)
        scene.await_row(records=len(sent) + len(DOUBLED))
        scene.kill()
        stranger = Producer({**servers, "transactional.id": f"{scene.topic}-open"})
        stranger.init_transactions(PATIENCE_S)
        stranger.begin_transaction()
        for partition in range(PARTITIONS):
            stranger.produce(scene.topic, b"no message", partition=partition)
        stranger.flush(PATIENCE_S)
        scene.send(WITHHELD)
        scene.deliver(MESSAGES)
        scene.start()
        # Longer than --late: what cannot be read yet is not missing.
        scene.await_row(lag=len(WITHHELD) + PARTITIONS, late=len(WITHHELD), missing=len(LOST))
        time.sleep(12.0)
        assert (scene.row()["late"], scene.row()["missing"]) == (len(WITHHELD), len(LOST))
        stranger.commit_transaction(PATIENCE_S)
        scene.await_row(lag=0, late=0, judged=MESSAGES, missing=len(LOST), altered_blocks=1)
        (tier,) = scene.audit(code=1)["tiers"]
        (row,) = tier["spools"]
        assert row["missing_runs"] == runs(LOST)
        assert row["duplicated_runs"] == runs(DOUBLED)
        assert row["altered_blocks"] == [[4096, 8191]]
        assert (row["altered"], row["unread_blocks"]) == (sorted(ALTERED), [])
        assert tier["records"] == len(sent) + len(DOUBLED) + len(WITHHELD)
        # Somebody sends again what was missing: then nothing is, but block 1 is altered still.
        scene.send(LOST)
        scene.await_row(missing=0, altered_blocks=1)
    finally:
        scene.kill()
