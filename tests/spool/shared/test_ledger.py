"""The ledger: discards without room are counted once, by topic and reason, whatever is killed.

These are the tests of `spool.storage.ab_slots`, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spool.format.scan import digest_address
from spool.format.wire import REASONS
from spool.layout import copy_of_ledger
from spool.shared.ledger import TOPIC_ROWS, Ledger, LedgerCopy, add, read_ledger, read_totals
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


@pytest.mark.parametrize("at", [0, 8, 300, 65535])
def test_a_damaged_bank_falls_back_to_the_one_before(tmp_path: Path, at: int) -> None:
    """Rot in the newer slot costs its own counts alone, never the file."""
    path, ledger = tmp_path / "ledger", Ledger(tmp_path / "ledger")
    count(ledger, [(b"t", 12)] * 3)
    ledger.commit(1)
    newer = ledger._right
    count(ledger, [(b"t", 12)] * 4)
    ledger.commit(2)
    assert totals(path) == {(b"t", 12): 7}
    data = bytearray(path.read_bytes())
    data[(1 - newer) * SLOTS_BYTES // 2 + at] ^= 1
    path.write_bytes(data)
    assert totals(path) == {(b"t", 12): 3}
    again = Ledger(path)
    count(again, [(b"t", 12)])
    again.commit(3)
    assert totals(path) == {(b"t", 12): 4}


@pytest.mark.parametrize("size", [0, 1, SLOTS_BYTES - 1])
def test_a_file_that_is_not_whole_is_made_again(tmp_path: Path, size: int) -> None:
    """A ledger that a crash left half-made does not stop intake."""
    path = tmp_path / "ledger"
    path.write_bytes(bytes(size))
    assert read_ledger(path) == []
    ledger = Ledger(path)
    count(ledger, [(b"t", 12)])
    ledger.commit(1)
    assert totals(path) == {(b"t", 12): 1}
    assert path.stat().st_blocks * 512 >= SLOTS_BYTES


def test_no_ledger_counts_nothing(tmp_path: Path) -> None:
    """A spool that was never full has an empty ledger, or none."""
    assert read_ledger(tmp_path / "ledger") == []
    Ledger(tmp_path / "ledger")
    assert read_ledger(tmp_path / "ledger") == []


def lose_sectors(path: Path, synced: bytes, seed: int) -> None:
    """Power goes: any sector of a file may have its content of the last sync."""
    chance = random.Random(seed)
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), 512):
        if chance.random() < 0.5:
            data[at : at + 512] = synced[at : at + 512]
    path.write_bytes(data)


@settings(max_examples=60)
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 1 << 32))
def test_power_loss_takes_no_more_than_was_not_copied(
    tmp_path_factory: pytest.TempPathFactory, copies: list[bool], seed: int
) -> None:
    """Any sectors of both slots and of the copy's unfinished write are lost: the synced counts remain."""
    path = tmp_path_factory.mktemp("ledger") / "ledger"
    ledger, copy = Ledger(path), LedgerCopy(path)
    blank, synced, known = path.read_bytes(), copy_of_ledger(path).read_bytes(), 0
    for burst, copied in enumerate(copies, 1):
        count(ledger, [(b"t", 12)] * burst)
        ledger.commit(burst)
        if copied:
            assert copy.update()
            assert not copy.update()
            synced, known = copy_of_ledger(path).read_bytes(), burst
    with mock.patch.object(os, "fdatasync", side_effect=OSError(5, "")), contextlib.suppress(OSError):
        copy.update()
    lose_sectors(path, blank, seed)
    lose_sectors(copy_of_ledger(path), synced, seed + 1)
    copy.close()
    found, _ = read_totals(path)
    assert known <= found <= len(copies)
    again = Ledger(path)
    assert again.burst == found
    count(again, [(b"u", 12)])
    again.commit(found + 1)
    assert totals(path) == Counter({(b"u", 12): 1, (b"t", 12): found * (found + 1) // 2}) - Counter()


def test_a_copy_whose_sync_fails_is_written_again(tmp_path: Path) -> None:
    """The other slot stays as it was synced; the next update writes the whole slot again."""
    path, ledger = tmp_path / "ledger", Ledger(tmp_path / "ledger")
    copy, pwrite, written = LedgerCopy(path), os.pwrite, []
    count(ledger, [(b"t", 12)])
    ledger.commit(1)
    with (
        mock.patch.object(os, "pwrite", lambda f, d, at: (written.append(at), pwrite(f, d, at))[1]),
        mock.patch.object(os, "fdatasync", side_effect=[OSError(5, ""), None]),
    ):
        with pytest.raises(OSError, match="5"):
            copy.update()
        assert copy.update()
    assert len(written) == 2
    assert written[0] == written[1]


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


def test_two_torn_banks_are_nothing_to_count_on_from(tmp_path: Path) -> None:
    """Neither verifies, and there is no copy: counting begins at zero, without the counts of their rows."""
    path, ledger = tmp_path / "ledger", Ledger(tmp_path / "ledger")
    for burst in (1, 2):
        count(ledger, [(b"t", 12)])
        ledger.commit(burst)
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    data[SLOTS_BYTES // 2] ^= 1
    path.write_bytes(data)
    again = Ledger(path)
    count(again, [(b"u", 12)])
    again.commit(1)
    assert totals(path) == {(b"u", 12): 1}
