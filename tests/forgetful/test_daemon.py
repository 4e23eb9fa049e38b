"""A real daemon on a disk that forgets and refuses: what was reported as synced is there, and delivered."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import numpy as np
import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.segment_format import HEADER, HEADER_BYTES
from spool.format.wire import encode
from spool.log.recovery import is_sealed
from spool.native.digest import digest
from tests.daemon import RunningBruce, consume
from tests.forgetful.disk import ForgetfulDisk

SEGMENT_BYTES = 256 << 10
PATIENCE_S = 90.0
"""A filesystem in Python on a busy machine."""


class Host:
    """A disk, a daemon on it, and its Kafka; and what was sent."""

    def __init__(self, directory: Path, disk: ForgetfulDisk, kafka: EmbeddedKafka, **spool: object) -> None:
        self.disk, self.kafka, self.sent = disk, kafka, 0
        place = {"directory": str(disk.path / "spool"), **spool}
        self.bruce = RunningBruce(
            directory, kafka.bootstrap_servers, segment_bytes=SEGMENT_BYTES, settings={"spool": place}
        )
        self.bruce.spool = disk.path / "spool"
        self.bruce.start()

    def send(self, count: int, size: int = 1000) -> None:
        """Send messages, each with its number at its head."""
        value = b" " * size
        self.sent += self.bruce.send(
            encode(b"t", b"%d" % n + value) for n in range(self.sent, self.sent + count)
        )

    def synced(self) -> int:
        """How many have been reported as synced."""
        return self.bruce.status().watermarks.synced

    def lose_power(self) -> None:
        """Power goes: disk and memory forget, every process is gone; the host boots again."""
        self.disk.cut_power()
        self.bruce.kill9()
        self.disk.unmount()
        self.disk.mount()
        for name in os.listdir(self.bruce.runtime):
            (self.bruce.runtime / name).unlink()
        for path in sorted((self.bruce.spool / "segments").iterdir()):
            if path.suffix != ".tmp" and not is_sealed(path):
                of_another_boot(path)

    def delivered(self, count: int) -> list[int]:
        """The numbers of the messages in Kafka, in order, once there are this many."""
        records = consume(self.kafka.bootstrap_servers, "t", 1, count, PATIENCE_S)
        return [int((record.value() or b"").split(b" ")[0]) for record in records]


def of_another_boot(path: Path) -> None:
    """Make a segment look as if the host had been booted since: its id cannot be changed."""
    with path.open("r+b") as file:
        data = file.read(HEADER_BYTES)
        if len(data) < HEADER_BYTES or not any(data):
            return
        header = np.frombuffer(data, HEADER).copy()
        if int(header["check"][0]) != digest(data[:-8]):
            return
        header["boot"] = bytes(range(16))
        header["check"] = digest(header.tobytes()[:-8])
        file.seek(0)
        file.write(header.tobytes())


@pytest.mark.sample("interval")
@pytest.mark.crash
@pytest.mark.parametrize("sync", ["interval", "always"])
def test_power_is_cut(tmp_path: Path, disk: ForgetfulDisk, kafka: EmbeddedKafka, sync: str) -> None:
    """Twice, in the middle of a flood: what was synced comes to Kafka, in order, and so does what follows."""
    kafka.down()
    host, chance, certain = Host(tmp_path, disk, kafka, sync=sync), random.Random(7), set[int]()
    try:
        for _ in range(2):
            first = host.sent
            host.send(400 + chance.randrange(400))
            host.bruce.await_status(lambda s: s.watermarks.synced % (1 << 32) > 100, PATIENCE_S)
            host.send(50)
            # Numbers go on at each boot's epoch; within one they count what was sent.
            synced = host.synced() % (1 << 32)
            host.lose_power()
            certain |= set(range(first, first + synced))
            assert synced > 100
            host.bruce.start()
        follows = host.sent
        host.send(20)
        kafka.up()
        certain |= set(range(follows, host.sent))
        done = host.bruce.await_status(lambda s: s.backlog == 0 and s.delivered > 0, PATIENCE_S)
        found = host.delivered(done.delivered)
        assert certain <= set(found)
        assert found == sorted(found)
        assert set(found) <= set(range(host.sent))
    finally:
        host.bruce.close()


@pytest.mark.crash
def test_a_sync_fails(tmp_path: Path, disk: ForgetfulDisk, kafka: EmbeddedKafka) -> None:
    """EIO from the sync of the live segment: said in words; its messages are delivered, and survive."""
    kafka.down()
    host = Host(tmp_path, disk, kafka)
    try:
        host.send(20)
        host.bruce.await_status(lambda s: s.watermarks.synced == 20, PATIENCE_S)
        disk.fail("FSYNC", ".seg", errno.EIO)
        host.send(20)
        # No sender is left: an idle worker lets go of the suspect.
        words = "syncs have failed since the start: 1 "
        host.bruce.await_status(lambda s: s.watermarks.synced == 40 and words in str(s.disk), PATIENCE_S)
        assert "could not be synced: Input/output error" in host.bruce.log.read_text()
        assert len(list((host.bruce.spool / "quarantine").glob("*.suspect"))) == 1
        host.lose_power()
        host.bruce.start()
        kafka.up()
        host.bruce.await_status(lambda s: s.delivered == 40, PATIENCE_S)
        assert host.delivered(40) == list(range(40))
    finally:
        host.bruce.close()


@pytest.mark.crash
def test_every_sync_fails_for_a_while(tmp_path: Path, disk: ForgetfulDisk, kafka: EmbeddedKafka) -> None:
    """No message is reported as synced, nor delivered, until the disk is well; then all are."""
    host = Host(tmp_path, disk, kafka)
    try:
        host.send(20)
        host.bruce.await_status(lambda s: s.delivered == 20, PATIENCE_S)
        disk.fail("FSYNC", ".seg", errno.EIO, 1 << 30)
        disk.fail("FSYNC", ".tmp", errno.EIO, 1 << 30)
        host.send(20)
        host.bruce.await_status(lambda s: bool(s.disk) and "waits to be written" in str(s.disk), PATIENCE_S)
        assert "could not be synced" in host.bruce.brucectl("status").stdout.decode()
        assert host.synced() == 20
        disk.heal()
        host.bruce.await_status(lambda s: s.delivered == 40, PATIENCE_S)
        assert host.delivered(40) == list(range(40))
    finally:
        host.bruce.close()


@pytest.mark.crash
def test_marks_cannot_be_synced(tmp_path: Path, disk: ForgetfulDisk, kafka: EmbeddedKafka) -> None:
    """EIO from LMDB's syncs: delivery goes on, nothing is freed by what is not marked, nothing is lost."""
    host = Host(tmp_path, disk, kafka)
    try:
        host.send(20)
        host.bruce.await_status(lambda s: s.delivered == 20, PATIENCE_S)
        disk.fail("FSYNC", "data.mdb", errno.EIO, 1 << 30)
        host.send(1000)
        host.bruce.await_true(lambda: "the marks cannot be written" in host.bruce.log.read_text(), PATIENCE_S)
        assert len(set(host.delivered(1020))) == 1020
        host.lose_power()
        assert not list((host.bruce.spool / "segments").glob("*.sent"))
        disk.heal()
        host.bruce.start()
        host.bruce.await_status(lambda s: s.delivered == 1020, PATIENCE_S)
    finally:
        host.bruce.close()
