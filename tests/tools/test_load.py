"""The load generator: what it counts is what it sent, and every datagram is one that bruce accepts."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from spool.format.wire import check
from spool.native.memory import address_of
from tests.spool.plain import Message, parse
from tools import load_kernel as hot
from tools.load import Load, LoadOptions, bucket_end, percentiles
from tools.payload import (
    HEAD,
    HEAD_BYTES,
    NO_KEY,
    PATTERN,
    PLACED,
    TOMBSTONE,
    VALUE,
    blank_value,
    headers_of,
)
from tools.waiting import wait_until


class Receiver(threading.Thread):
    """Reads a datagram socket until it is stopped."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(0.1)
        self.datagrams: list[bytes] = []
        self.ending = False
        self.start()

    def run(self) -> None:
        while True:
            try:
                self.datagrams.append(self.socket.recv(1 << 16))
            except TimeoutError:
                if self.ending:
                    return
            else:
                if not self.datagrams[-1]:
                    self.datagrams.pop()  # after shutdown, an empty read is the end
                    return

    def finish(self) -> list[bytes]:
        """Every datagram received, once no more come."""
        self.ending = True
        self.join(timeout=60)
        assert not self.is_alive()
        self.socket.close()
        return self.datagrams


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    """A reader of tmp_path/s."""
    reader = Receiver(tmp_path / "s")
    yield reader
    reader.ending = True


def run(load: Load) -> dict:
    """Its report, when it is done."""
    load.start()
    load.wait()
    assert load.failed == 0
    return load.report()


def values(datagrams: list[bytes]) -> list[tuple[tuple, bytes]]:
    """(head, value) of each."""
    found = []
    for data in datagrams:
        keyed = data[5]
        topic = int.from_bytes(data[10 + 4 * keyed : 12 + 4 * keyed], "big")
        at = 12 + 4 * keyed + topic + 8
        at += 4 + int.from_bytes(data[at : at + 4], "big")
        value = data[at + 4 :]
        found.append((np.frombuffer(value, HEAD, 1)[0], value))
    return found


def test_every_datagram_is_well_formed_and_unique(tmp_path: Path, receiver: Receiver) -> None:
    """Sizes, kinds and topics mixed: each passes the intake's own check and carries its id twice."""
    load = Load(
        LoadOptions(
            tmp_path / "s", count=3001, senders=2, topics=("a", "bcd"), sizes=(90, 5000), keyed=0.5, keys=5
        )
    )
    report = run(load)
    datagrams = receiver.finish()
    arrays = [np.frombuffer(d, np.uint8) for d in datagrams]
    assert [check(address_of(a), len(a)) for a in arrays] == [0] * 3001
    assert {d[5] for d in datagrams} == {0, 1}
    seen = values(datagrams)
    assert {(int(h["sender"]), int(h["id"])) for h, _ in seen} == {
        (s["sender"], i) for s in report["senders"] for i in range(s["sent"])
    }
    for head, value in seen:
        assert value[HEAD_BYTES:-8] == PATTERN[: len(value) - 32]
        assert int.from_bytes(value[-8:], "little") == head["id"]
    assert {int(h["key"]) for h, _ in seen} == {NO_KEY, -2, -1, 0, 1, 2}


def test_batches_and_all_kinds_are_well_formed(tmp_path: Path, receiver: Receiver) -> None:
    """Each datagram passes the intake's check, and has as many messages as its sender's batches have.

    Their ids are those from one multiple of that number to the next, each has the headers that its traits
    say, and a partition that it names is below the bound.
    """
    load = Load(
        LoadOptions(
            tmp_path / "s",
            count=2000,
            batches=(1, 7),
            sizes=(200, 400),
            keyed=0.4,
            headers=0.4,
            placed=0.3,
            partitions=5,
            tombstones=0.2,
        )
    )
    report = run(load)
    datagrams = receiver.finish()
    batches = [[payload_of(message) for message in parse(data)] for data in datagrams]
    assert {len(batch) for batch in batches} == {1, 7}
    assert sum(map(len, batches)) == report["sent"] == 1000 + 1001
    kinds = set()
    for found in batches:
        first, size = found[0][0], len(found)
        assert [int(head["id"]) for head, _ in found] == [int(first["id"]) + i for i in range(size)]
        assert (int(first["id"]) % size, int(first["batch"])) == (0, size - 1)
        kinds |= {(int(head["traits"]), place) for head, place in found}
    assert {traits for traits, _ in kinds} == set(range(8))
    assert {place for traits, place in kinds if traits & PLACED} == set(range(5))


def payload_of(message: Message) -> tuple[np.void, int | None]:
    """(head, the partition that it names); its headers are those of its traits."""
    value = message.value if message.value is not None else dict(message.headers)[VALUE]
    head = np.frombuffer(value, HEAD, 1)[0]
    assert list(message.headers) == headers_of(int(head["traits"]), value[-8:], value)
    assert (message.value is None) == bool(head["traits"] & TOMBSTONE)
    return head, message.partition


def test_what_is_sent_is_counted_exactly(tmp_path: Path) -> None:
    """Senders that are stopped in the middle report exactly the messages that the socket took."""
    receiver = Receiver(tmp_path / "s")
    load = Load(LoadOptions(tmp_path / "s", senders=3))
    load.start()
    wait_until(lambda: receiver.datagrams, 60, "a datagram")
    load.stop()
    load.wait()
    report = load.report()
    assert report["sent"] == len(receiver.finish()) > 0


def test_senders_wait_for_a_daemon_that_is_away(tmp_path: Path) -> None:
    """A socket that comes late, and one that goes and comes back: everything is sent in the end."""
    load = Load(LoadOptions(tmp_path / "s", count=2000))
    load.start()
    wait_until(lambda: all(s["reconnects"] for s in load.report()["senders"]), 60, "senders that wait")
    # It has no reader: its queue takes some, and the senders wait with the rest.
    first = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    first.bind(str(tmp_path / "s"))
    assert select.select([first], [], [], 60)[0]
    # As bruce ends: senders are refused, and what they sent before is read.
    (tmp_path / "s").unlink()
    first.shutdown(socket.SHUT_RD)
    second = Receiver(tmp_path / "s")
    got = 0
    while first.recv(1 << 16):
        got += 1
    first.close()
    load.wait()
    report = load.report()
    rest = len(second.finish())
    assert min(got, rest) > 0
    assert report["sent"] == 2000 == got + rest
    assert all(s["reconnects"] for s in report["senders"])


def test_a_schedule_is_kept_and_lateness_is_seen(tmp_path: Path) -> None:
    """Without a reader due messages pile up, and each of them is late from its own time on."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    holder.bind(str(tmp_path / "s"))
    load = Load(LoadOptions(tmp_path / "s", count=2000, rate=4000))
    begun = time.monotonic()
    load.start()
    wait_until(lambda: load.report()["sent"], 60, "the first message")
    time.sleep(0.7)
    held_ms = 1000 * (time.monotonic() - load.report()["first_ns"] / 1e9)
    holder.settimeout(60)
    for _ in range(2000):
        holder.recv(4096)
    holder.close()
    load.wait()
    found = load.report()
    assert found["sent"] == 2000
    # The queue took some of the first at once: who waited longest was due when it was full.
    assert held_ms - 300 < found["latency_ms"]["max"] < 1000 * (time.monotonic() - begun)
    assert found["latency_ms"]["p50"] < found["latency_ms"]["p99"] <= found["latency_ms"]["max"]


def test_sigterm_ends_the_command_with_its_report(tmp_path: Path) -> None:
    """The counts are printed also when the load is ended early."""
    receiver = Receiver(tmp_path / "s")
    command = [
        sys.executable,
        "-m",
        "tools.load",
        "--socket",
        tmp_path / "s",
        "--rate",
        "2000",
        "--lump-ms",
        "20",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: receiver.datagrams, 60, "a datagram")
        os.kill(process.pid, signal.SIGTERM)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert json.loads(said)["sent"] == len(receiver.finish())


def test_a_value_that_cannot_hold_its_ids_is_refused() -> None:
    """A load with too small a size says so, instead of sending what cannot be checked."""
    with pytest.raises(ValueError, match="32 bytes"):
        blank_value(31)


def test_percentiles_round_up_to_their_bucket() -> None:
    """Buckets are 1/32 wide at most, in order, and a percentile is never better than what was measured."""
    ends = [bucket_end(i) for i in range(hot.BUCKETS)]
    assert ends == sorted(ends)
    histogram = np.zeros(hot.BUCKETS, np.int64)
    for microseconds in (1, 31, 32, 63, 64, 1000, 123_456, 5_000_000):
        at = hot.bucket(microseconds)
        assert microseconds < ends[at] <= microseconds * 33 / 32 + 1
        histogram[at] += 1
    found = percentiles(histogram, worst_ms=5000.0)
    assert 0.063 <= found["p50"] <= 0.066
    assert found["p99"] == found["max"] == 5000.0
