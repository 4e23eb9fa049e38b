"""The soak's one-minute form, and its parts: the faults and their targets, and what counts as flat."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.spool.small_disk import mounted
from tools.kafka_cluster import KafkaMissing, fetch_jars
from tools.soaks.balloon import Balloon
from tools.soaks.plan import EVERYTHING, plan
from tools.soaks.samples import LEAST_LIFE_S, Sample, judge_growth
from tools.waiting import wait_until

SOAK = Path(__file__).resolve().parents[2] / "tools/soak"


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.real_kafka
def test_a_minute_of_everything(tmp_path: Path) -> None:
    """On three real brokers and a small disk: the totals balance, and every message is accounted for."""
    try:
        fetch_jars()
    except KafkaMissing as error:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse(f"no real Kafka: {error}")
    command = [sys.executable, SOAK, "--minutes", "1", "--dir", tmp_path / "soak"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is missing" in done.stdout
    assert (tmp_path / "soak/soak.png").stat().st_size > 10_000


@pytest.mark.parametrize("minutes", [1, 2, 5, 8, 45])
def test_every_trouble_comes_in_a_soak_of_any_length(minutes: int) -> None:
    """Each minute has its own, drawn from the seed alone; all are killed at once only in the beginning."""
    drawn = plan(minutes, 3, 7)
    assert len(drawn) == minutes
    assert drawn == plan(minutes, 3, 7) != plan(minutes, 3, 8)
    troubles = [trouble for minute in drawn for trouble in minute]
    assert {"kill", "freeze", "fill", "starve", "break"} <= {trouble.verb for trouble in troubles}
    assert all(len(minute) == 1 for minute in drawn) or minutes < EVERYTHING
    assert [t.target for t in troubles].count("all") == 1
    assert troubles[0].target == "all"


def life(kib: np.ndarray, descriptors: int = 12, *, pid: int = 1, begun_s: float = 0.0) -> list[Sample]:
    """A sample every two seconds."""
    return [Sample(begun_s + 2 * i, "keeper", pid, int(k), descriptors) for i, k in enumerate(kib)]


def judged(samples: list[Sample]) -> list[bool]:
    """Whether memory, and descriptors, are flat; those that lived too short are left out."""
    return [row["flat"] for row in judge_growth(samples) if row["judged"]]


def test_what_grows_is_no_longer_flat() -> None:
    """A leak is seen through noise; growth at the beginning, noise and a short life are none."""
    noise, minutes = np.random.default_rng(1), 30
    count = minutes * 30
    flat = 70_000 + noise.normal(0, 2_000, count)
    warm = flat - 40_000 * np.exp(-np.arange(count) / 60)
    leak = flat + np.linspace(0, 40_000, count)
    assert judged(life(flat)) == judged(life(warm)) == [True, True]
    assert judged(life(leak)) == [False, True]
    short = int(LEAST_LIFE_S / 2) - 30
    assert judged(life(leak[:short])) == []
    assert judged(life(leak) + life(flat[:600], pid=2, begun_s=2000.0)) == [False, True]


def test_descriptors_that_are_not_closed_are_seen() -> None:
    """Ten more over the time that counts."""
    samples = [Sample(2.0 * i, "ingest", 1, 70_000, 12 + i // 60) for i in range(900)]
    assert judged(samples) == [True, False]


def test_a_balloon_takes_all_there_is_and_gives_it_back(tmp_path: Path) -> None:
    """Memory that other processes free meanwhile is taken as well."""
    with mounted("ext4", tmp_path, 16 << 20) as disk:
        other = disk / "other"
        other.write_bytes(bytes(4 << 20))
        with Balloon(disk / "balloon"):
            wait_until(lambda: is_full(disk), 30, "the disk to be full")
            other.unlink()
            wait_until(lambda: is_full(disk), 30, "the disk to be full again")
        assert not is_full(disk, 4 << 20)


def is_full(disk: Path, size_bytes: int = 64 << 10) -> bool:
    """Whether there is no room for this many bytes."""
    probe = disk / "probe"
    with probe.open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
        except OSError as error:
            return error.errno == errno.ENOSPC
        finally:
            probe.unlink()
    return False
