"""The ledger: discards without room are counted once, by topic and reason, whatever is killed."""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spool.format.scan import digest_address
from spool.format.wire import REASONS
from spool.layout import copy_of_ledger
from spool.shared.ledger import TOPIC_ROWS, Ledger, LedgerCopy, add, read_ledger
from spool.storage.ab_slots import SLOTS_BYTES
from tests.spool.fixture import SpoolFixture

Discard = tuple[bytes, int]
NOW = 1_700_000_000_000_000_000

discards = st.tuples(
    st.sampled_from((b"", b"a", b"b", b"topic", b"l" * 300, b"l" * 299 + b"m")),
    st.integers(1, REASONS - 1),
)
bursts = st.lists(st.tuples(st.lists(discards, max_size=6), st.booleans()), max_size=12)


def count(ledger: Ledger, found: list[Discard], now: int = NOW) -> None:
    """Add discards to the other slot, without a commit."""
    slot = ledger.begin()
    for topic, reason in found:
        memory = ctypes.create_string_buffer(topic, len(topic) + 1)
        add(slot, ctypes.addressof(memory), len(topic), reason, now, digest_address())


def totals(path: Path) -> Counter[Discard]:
    """The totals by reason and by topic, with topics as far as a row keeps them."""
    found: Counter[Discard] = Counter()
    for row in read_ledger(path):
        found[row.topic, row.reason] += row.count
    return found


@settings(max_examples=60)
@given(bursts)
def test_bursts_count_whole_or_not_at_all(
    tmp_path_factory: pytest.TempPathFactory, given_bursts: list[tuple[list[Discard], bool]]
) -> None:
    """A process that dies between begin and commit changes no count; one that commits has counted all."""
    path = tmp_path_factory.mktemp("ledger") / "ledger"
    model: Counter[Discard] = Counter()
    ledger, last = Ledger(path), 0
    for number, (found, dies) in enumerate(given_bursts, 1):
        count(ledger, found)
        if dies:
            ledger = Ledger(path)
            assert ledger.burst == last
        else:
            ledger.commit(number)
            last = number
            model.update((topic[:216], reason) for topic, reason in found)
        assert totals(path) == model
    assert Ledger(path).burst == last


def test_times_are_those_of_the_first_and_the_last(tmp_path: Path) -> None:
    """A row says when its first and its last message were discarded."""
    ledger = Ledger(tmp_path / "ledger")
    for i in range(5):
        count(ledger, [(b"t", 12)], NOW + i)
        ledger.commit(i + 1)
    (row,) = read_ledger(tmp_path / "ledger")
    assert (row.topic, row.reason, row.count) == (b"t", 12, 5)
    assert (row.first_ns, row.last_ns) == (NOW, NOW + 4)


def test_more_topics_than_rows_are_counted_by_reason(tmp_path: Path) -> None:
    """Topics without a row are counted in the row of their reason; no count is lost, no reason mixed."""
    path, ledger = tmp_path / "ledger", Ledger(tmp_path / "ledger")
    found = [(b"topic-%d" % i, 12 if i % 2 else 11) for i in range(400)]
    count(ledger, found + found)
    ledger.commit(1)
    rows = totals(path)
    assert sum(n for (topic, _), n in rows.items() if topic) == 2 * TOPIC_ROWS
    assert all(n == 2 for (topic, _), n in rows.items() if topic)
    for reason in (11, 12):
        assert sum(n for (_, r), n in rows.items() if r == reason) == 400
    assert rows[b"", 11] + rows[b"", 12] == 800 - 2 * TOPIC_ROWS


def test_reasons_without_a_topic_never_share_a_row(tmp_path: Path) -> None:
    """Discards without a topic are counted by reason, also when every topic row is taken."""
    path, ledger = tmp_path / "ledger", Ledger(tmp_path / "ledger")
    reasons = range(1, REASONS)
    count(ledger, [(b"topic-%d" % i, 12) for i in range(TOPIC_ROWS)] + [(b"", r) for r in reasons])
    ledger.commit(1)
    assert {r: n for (topic, r), n in totals(path).items() if not topic} == dict.fromkeys(reasons, 1)


def test_no_ledger_counts_nothing(tmp_path: Path) -> None:
    """A spool that was never full has an empty ledger, or none."""
    assert read_ledger(tmp_path / "ledger") == []
    Ledger(tmp_path / "ledger")
    assert read_ledger(tmp_path / "ledger") == []


def test_the_keeper_copies_without_being_asked(spool: SpoolFixture) -> None:
    """Discards are in the copy after a step of the keeper, and after its end at the latest."""
    ledger = Ledger(spool.layout.ledger)
    for burst, end in ((1, lambda: None), (2, spool.stop)):
        count(ledger, [(b"t", 12)])
        ledger.commit(burst)
        spool.keeper._copied_at -= 10
        if burst == 1:
            spool.step()
        end()
        copy = copy_of_ledger(spool.layout.ledger)
        assert totals(copy) == {(b"t", 12): burst}


def test_a_copy_is_not_believed_because_it_can_be_read(tmp_path: Path) -> None:
    """Its last sync failed, and its keeper died: the next one writes and syncs the copy again."""
    path, ledger = tmp_path / "ledger", Ledger(tmp_path / "ledger")
    copy = LedgerCopy(path)
    count(ledger, [(b"t", 12)])
    ledger.commit(1)
    with mock.patch.object(os, "fdatasync", side_effect=OSError(5, "")), pytest.raises(OSError, match="5"):
        copy.update()
    copy.close()
    done, pwrite = [], os.pwrite
    with (
        mock.patch.object(os, "pwrite", lambda f, d, at: (done.append(len(d)), pwrite(f, d, at))[1]),
        mock.patch.object(os, "fdatasync", side_effect=lambda _: done.append("sync")),
    ):
        assert LedgerCopy(path).burst == 1
    assert done == [SLOTS_BYTES // 2, "sync"]
