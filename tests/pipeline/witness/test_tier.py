"""Bursts of records, whatever is in them: each spool has seen what a model in plain Python has seen."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch import record_consumer
from pipeline.witness.tier import MOST_FAR, MOST_STRANGERS, UNTIMED, TierState, _Finder, begin_of, is_begun
from tests.pipeline.witness.model import Model, Seen, columns, sum_of, sums_of

SPOOLS = [bytes([n] * 16).hex() for n in range(1, 4)]
STRANGER = bytes([9] * 16).hex()
SEQUENCES = st.one_of(
    st.integers(0, 12),
    st.integers(4090, 4100),
    st.integers((1 << 24) - 3, (1 << 24) + 3),
    st.integers((1 << 24) + 8190, (1 << 24) + 8194),
    st.integers(-(2**63), 2**63 - 1),
)
RECORDS = st.builds(
    Seen,
    st.sampled_from([*SPOOLS, STRANGER]),
    SEQUENCES,
    st.one_of(st.just(5), st.integers(-(2**63), 2**63 - 1)),
    st.one_of(st.just(UNTIMED), st.just(1), st.integers(-(2**63), 2**63 - 1)),
)
BURSTS = st.lists(RECORDS, max_size=40)


def tier_of(*spools: str, end: int = 0) -> TierState:
    """A tier that watches these spools."""
    tier = TierState(1, "tier", itertools.count(2))
    tier.watch(dict.fromkeys(spools, end))
    return tier


@settings(deadline=None, max_examples=200)
@given(st.lists(BURSTS, max_size=6), st.integers(0, 2), st.integers(0, 9000))
def test_bursts_are_seen_as_the_model_sees_them(bursts: list[list[Seen]], count: int, end: int) -> None:
    """Out of order, copies in one burst and in several, untimed, hostile, or of strangers."""
    tier, model = tier_of(), Model()
    watched = SPOOLS[: count + 1]
    for spool in watched:
        model.watch(spool, end)
    tier.watch(dict.fromkeys(watched, end))
    for burst in bursts:
        tier.absorb(*columns(burst))
        model.absorb(burst)
    model.check(tier)


def test_the_reader_means_the_same_by_untimed() -> None:
    """RecordConsumer gives the number that this package takes for no time."""
    assert record_consumer.UNTIMED == UNTIMED


def test_the_first_record_counts() -> None:
    """Of copies with other contents, in one burst and later, the first one is in the sums."""
    tier = tier_of(SPOOLS[0])
    records = [Seen(SPOOLS[0], 7, content, 1) for content in (3, 4, 5)]
    tier.absorb(*columns([Seen(SPOOLS[0], 8, 2, 1), *records[:2]]))
    tier.absorb(*columns(records[2:]))
    assert sums_of(tier.spool(SPOOLS[0])) == {0: sum_of([(7, 3, 1), (8, 2, 1)])}


def test_a_broker_s_time_counts_for_nothing() -> None:
    """Untimed records are in the content and in the count, and counted as untimed."""
    tier = tier_of(SPOOLS[0])
    tier.absorb(*columns([Seen(SPOOLS[0], 1, 3, UNTIMED), Seen(SPOOLS[0], 2, 3, 8)]))
    (_, times, count, untimed) = sums_of(tier.spool(SPOOLS[0]))[0]
    assert (times, count, untimed) == (sum_of([(2, 3, 8)])[1], 2, 1)


def test_a_copy_behind_settling_is_only_seen_twice() -> None:
    """The sums of a settled block stay forgotten: by a copy, and by a sequence that is new."""
    tier = tier_of(SPOOLS[0])
    tier.absorb(*columns([Seen(SPOOLS[0], at, 3, 1) for at in (1, 2, 5000)]))
    seen = tier.spool(SPOOLS[0])
    seen.settle(np.array([0]))
    tier.absorb(*columns([Seen(SPOOLS[0], at, 4, 1) for at in (1, 3)]))
    assert (set(seen.seen), set(seen.twice)) == ({1, 2, 3, 5000}, {1})
    assert sums_of(seen) == {1: sum_of([(5000, 3, 1)])}


def test_strangers_bring_no_spool_and_no_sums() -> None:
    """Made-up spools are counted alone, and sequences far beyond the end of a watched one have no sums."""
    tier, random = tier_of(SPOOLS[0]), np.random.default_rng(1)
    words = random.integers(1 << 25, 2**63 - 1, (3, 5000))
    tier.absorb(random.integers(0, 255, (5000, 16), np.uint8), *words)
    tier.watch({})
    assert (tier.foreign, tier.spools()) == (5000, SPOOLS[:1])
    uuids = np.frombuffer(bytes.fromhex(SPOOLS[0]), np.uint8)
    tier.absorb(np.tile(uuids, (5000, 1)), *words)
    tier.watch({})
    seen = tier.spool(SPOOLS[0])
    # Of more blocks than that, records are forgotten, whatever strangers send.
    assert (len(seen.seen), len(seen.sums()[0]), len(seen.unsummed)) == (MOST_FAR, 0, MOST_FAR)
    assert tier.negative == 0


def test_news_waits_for_the_next_look() -> None:
    """Records of a spool that may be new, and far ones, are kept until it is known whose they are."""
    tier = tier_of(SPOOLS[0], end=1000)
    tier.absorb(*columns([Seen(SPOOLS[0], one, 3, 1) for one in (5, 1 << 40)]))
    tier.absorb(*columns([Seen(SPOOLS[1], one, 3, 1) for one in (6, 7)]))
    assert (list(tier.spool(SPOOLS[0]).seen), tier.foreign) == ([5], 0)
    tier.watch({SPOOLS[0]: (1 << 40) + 1, SPOOLS[1]: 9})
    first, second = (tier.spool(one) for one in SPOOLS[:2])
    assert (list(first.seen), list(first.unsummed)) == ([5, 1 << 40], [])
    assert (list(second.seen), is_begun(tier, SPOOLS[1])) == ([6, 7], False)
    # A known spool is taken in at once.
    tier.absorb(*columns([Seen(SPOOLS[1], 8, 3, 1)]))
    assert list(second.seen) == [6, 7, 8]


def test_a_spool_that_was_a_stranger_is_judged_from_its_end_on() -> None:
    """Its records were forgotten, also before a restart."""
    tier = tier_of(SPOOLS[0])
    tier.absorb(*columns([Seen(SPOOLS[1], 5, 3, 1)]))
    tier.watch({})
    tier.absorb(*columns([Seen(SPOOLS[1], 6, 3, 1)]))
    assert tier.foreign == 2
    again = TierState(1, "tier", itertools.count(9))
    again.facts = dict(tier.facts)
    again.begin(itertools.count(9))
    for one in (tier, again):
        one.watch({SPOOLS[1]: 900, SPOOLS[2]: 900})
        assert (begin_of(one, SPOOLS[1]), is_begun(one, SPOOLS[2])) == (900, False)


def test_among_many_strangers_any_spool_may_be_one() -> None:
    """Their names are bounded; a spool that comes then is judged from its end on."""
    tier, random = tier_of(), np.random.default_rng(1)
    words = np.ones((3, 2 * MOST_STRANGERS), np.int64)
    tier.absorb(random.integers(0, 255, (2 * MOST_STRANGERS, 16), np.uint8), *words)
    tier.watch({})
    assert sum(len(str(fact)) for fact in tier.facts.values()) == 32 * MOST_STRANGERS
    tier.watch({SPOOLS[0]: 900})
    assert begin_of(tier, SPOOLS[0]) == 900


def test_a_spool_that_passes_what_was_forgotten_is_judged_anew() -> None:
    """A stranger has used up its far blocks, so its own records were forgotten: none of them is missing."""
    tier = tier_of(SPOOLS[0])
    uuids = np.tile(np.frombuffer(bytes.fromhex(SPOOLS[0]), np.uint8), (MOST_FAR, 1))
    far = (1 << 50) + (np.arange(MOST_FAR) << 12)
    tier.absorb(uuids, far, far, far)
    own = 1 << 25
    tier.absorb(*columns([Seen(SPOOLS[0], own, 3, 1), Seen(SPOOLS[0], 5, 3, 1)]))
    tier.watch({})
    assert tier.spool(SPOOLS[0]).seen.min() == 5
    assert own not in tier.spool(SPOOLS[0]).seen
    tier.watch({SPOOLS[0]: own})
    assert begin_of(tier, SPOOLS[0]) == 0
    tier.watch({SPOOLS[0]: own + 10})
    tier.watch({SPOOLS[0]: own + 20})
    assert begin_of(tier, SPOOLS[0]) == own + 10


def test_watching_again_adds_to_the_spools() -> None:
    """Spools stay watched when later calls do not name them, and a raised end lets sums begin."""
    tier = tier_of(SPOOLS[0])
    record = Seen(SPOOLS[0], (1 << 24) + 5, 3, 1)
    tier.absorb(*columns([record]))
    tier.watch({SPOOLS[1]: 0})
    tier.watch({SPOOLS[0]: 4096})
    tier.absorb(*columns([record._replace(sequence=record.sequence + 1)]))
    assert tier.spools() == SPOOLS[:2]
    seen = tier.spool(SPOOLS[0])
    assert (set(seen.unsummed), list(sums_of(seen))) == ({4096}, [4096])
    with pytest.raises(KeyError):
        tier.spool(STRANGER)
    for bad in ("12", "x"):
        with pytest.raises(ValueError, match="hexadecimal"):
            tier.watch({bad: 0})


def test_a_finder_finds_uuids_with_one_key() -> None:
    """Uuids that are mixed to one number are told from each other, and from others with that number."""
    mix = 0x9E3779B97F4A7C15
    halves = [(0, 0), (mix, 1), (2 * mix, 2), (5, 5)]
    uuids = [b"".join((half % (1 << 64)).to_bytes(8, "little") for half in one) for one in halves]
    for watched in (uuids[:2], uuids[:1], [uuids[3], uuids[1]], []):
        places = _Finder(watched).places(np.frombuffer(b"".join(uuids), np.uint8).reshape(-1, 16))
        assert places.tolist() == [watched.index(one) if one in watched else -1 for one in uuids]


def test_no_python_runs_by_record() -> None:
    """A burst of 10,000 records of 500 spools takes a few milliseconds."""
    tier = tier_of(*(bytes([n % 256, n // 256] * 8).hex() for n in range(500)), end=1 << 40)
    uuids = np.frombuffer(b"".join(bytes.fromhex(one) for one in tier.spools()), np.uint8).reshape(-1, 16)
    took = list[float]()
    for burst in range(12):
        sequences = burst * 20 + np.arange(10_000) // 500
        begun = time.thread_time()
        tier.absorb(uuids[np.arange(10_000) % 500], sequences, sequences, sequences)
        took.append(time.thread_time() - begun)
    # 0.005 s on a quiet machine; a loop over the records takes 20 times as long.
    assert min(took) < 0.05
