"""How long Kafka may be away: the prediction comes true."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from cli.doctor.plan import Plan, busiest, make_plan
from spool.errors import SpoolFull
from spool.format.wire import encode
from spool.read.files import Span
from spool.read.overview import Overview, State, overview, segment_paths, timeline
from spool.shared.state import Field
from tests.spool.fixture import SpoolFixture
from tests.spool.stored import pack_file

SECOND = 10**9
START = 1_800_000_000 * SECOND
HOUR = 3600 * SECOND


@pytest.fixture
def spool(memory: Path) -> Iterator[SpoolFixture]:
    """A spool of at most 128 segments."""
    made = SpoolFixture(memory, recompress=False)
    yield made
    made.crash()


def receive(spool: SpoolFixture, seconds: int, at: int = 0, value: bytes = b"v" * 700) -> int:
    """A frame of three messages each second, until the spool is full; returns the seconds since the start."""
    with suppress(SpoolFull):
        while seconds and not spool.shared.words[Field.FULL]:
            spool.append([encode(b"t", value)] * 3, received_ns=START + at * SECOND)
            spool.step()
            at, seconds = at + 1, seconds - 1
    return at


def segments(spool: SpoolFixture) -> list[Overview]:
    """All segments of the spool."""
    return list(overview(segment_paths(spool.layout), spool.layout))


def plan(spool: SpoolFixture) -> Plan:
    """The current plan."""
    found = segments(spool)
    live = [one.path for one in found if one.state is State.OPEN]
    made = make_plan(spool.options, found, timeline(live, Span(), 3600, pytest.fail))
    assert made
    return made


def test_the_spool_is_full_when_it_was_said_to_be(spool: SpoolFixture) -> None:
    """The outage goes on at the measured rate."""
    now = receive(spool, 100)
    made = plan(spool)
    assert made.mean.messages_per_second == pytest.approx(3, rel=0.05)
    assert made.mean.hours_left == pytest.approx(made.busiest_hour.hours_left, rel=0.1)
    end = receive(spool, 10_000, now)
    assert end - now == pytest.approx(made.mean.hours_left * 3600, rel=0.1)
    assert end == pytest.approx(made.mean.hours * 3600, rel=0.1)
    assert plan(spool).mean.hours_left * 3600 < 0.1 * end


def test_a_gibibyte(spool: SpoolFixture) -> None:
    """Its hours are its bytes divided by those of one hour."""
    receive(spool, 100)
    made = plan(spool)
    sealed = [one for one in segments(spool) if one.state is State.SEALED]
    taken, held = sum(one.disk_bytes for one in sealed), sum(one.log_bytes or 0 for one in sealed)
    assert (made.compression.ratio, made.compression.known_by) == (taken / held, "none")
    hourly = made.mean.bytes_per_second * taken / held * 3600
    assert made.mean.hours_per_gib * hourly == pytest.approx(1 << 30)
    assert made.mean.bytes_per_second == pytest.approx(3 * 760, rel=0.1)


def test_packed_segments_tell_the_compression(spool: SpoolFixture) -> None:
    """Otherwise a part of a sealed segment is compressed, and both agree; repeated bytes take a fraction."""
    receive(spool, 60)
    spool.replace(recompress=True)
    sample = plan(spool)
    sealed = [one for one in segments(spool) if one.state is State.SEALED]
    for one in sealed:
        pack_file(one.path)
    packed = plan(spool)
    assert (sample.compression.known_by, packed.compression.known_by) == ("sample", "packed")
    taken = sum(one.disk_bytes for one in segments(spool) if one.packed)
    assert packed.compression.ratio == taken / sum(one.log_bytes or 0 for one in sealed)
    assert sample.compression.ratio < 0.1
    assert packed.mean.hours == pytest.approx(
        sample.mean.hours * sample.compression.ratio / packed.compression.ratio, rel=0.05
    )


def test_without_messages_there_is_no_plan(spool: SpoolFixture) -> None:
    """A rate of zero would last for ever; so would the rate of one moment."""
    nothing = timeline([], Span(), 1, pytest.fail)
    assert make_plan(spool.options, segments(spool), nothing) is None


def test_the_busiest_hour() -> None:
    """At any time of day, and with intervals of any length."""
    start = np.array([0, 2, 3, 10]) * HOUR
    end = np.array([2, 3, 3, 10]) * HOUR
    amount = np.array([200, 100, 7, 50])
    assert busiest(start, end, amount, 3600) == pytest.approx(107)
    assert busiest(start, end, amount, 7200) == pytest.approx(207)
    assert busiest(np.array([0]), np.array([HOUR // 2]), np.array([8]), 3600) == pytest.approx(8)
    half = np.array([HOUR // 2]), np.array([3 * HOUR // 2]), np.array([60])
    assert busiest(*half, 1800) == pytest.approx(30)
