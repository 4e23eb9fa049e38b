"""Two slots in a file, written in turn: rot, a power loss or a failed sync costs the newer one at most."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spool.layout import copy_of_ledger
from spool.shared.ledger import Ledger, LedgerCopy, read_ledger, read_totals
from spool.storage.ab_slots import SLOTS_BYTES
from tests.spool.shared.test_ledger import count, totals


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
