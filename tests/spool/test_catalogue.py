"""The catalogue follows what the keeper does to the files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spool.catalogue import Catalogue, Lasting
from spool.errors import BadSpool
from spool.layout import SEGMENT, SENT
from spool.page import Field
from tests.spool.rig import Rig


def sequences(rig: Rig) -> list[int]:
    """Of every message that is stored."""
    return [sequence for sequence, _ in rig.records()]


def test_it_knows_every_named_segment(rig: Rig) -> None:
    """Number, first sequence and what lies before, as the second reader has them; spares are not named."""
    rig.fill(60)
    rig.step()
    catalogue = Catalogue(rig.layout)
    expected = [(s.header["first_sequence"], s.header["number"], s.header["stored"]) for s in rig.segments()]
    assert [(i.first_sequence, i.number, i.stored) for i in catalogue.segments] == expected
    assert len({info.identity for info in catalogue.segments}) == len(expected) > 2
    assert catalogue.segments[1] == catalogue.by_number(2)
    assert catalogue.by_number(99) is None


def test_at_finds_the_segment(rig: Rig) -> None:
    """Of every message there is, and of numbers before and behind them all."""
    rig.fill(60)
    rig.step()
    catalogue = Catalogue(rig.layout)
    for sequence in sequences(rig):
        info = catalogue.segments[catalogue.at(sequence)]
        assert info.first_sequence <= sequence
        assert catalogue.stored_below(sequence) == sequence
    assert catalogue.at(1 << 60) == len(catalogue.segments) - 1
    assert catalogue.at(0) == 0


def test_stored_below_knows_of_gaps(rig: Rig) -> None:
    """Numbers that were never given out do not count."""
    rig.fill(20)
    rig.step()
    rig.boot += 1
    rig.reopen()
    rig.fill(20)
    rig.step()
    catalogue, numbers = Catalogue(rig.layout), sequences(rig)
    assert numbers[-1] > 1 << 32
    assert [catalogue.stored_below(sequence) for sequence in numbers] == list(range(len(numbers)))
    assert catalogue.stored_below(1 << 31) == catalogue.stored_below(1 << 32) == 60


def test_a_segment_keeps_its_identity_when_it_is_called_sent(rig: Rig) -> None:
    """Renamed before a refresh, between listing and look, or between refresh and open."""
    rig.fill(60)
    rig.step()
    catalogue = Catalogue(rig.layout)
    before = list(catalogue.segments)
    rig.page.words[Field.FLOOR] = before[2].first_sequence
    rig.step()
    os.close(catalogue.open(before[0]))
    assert catalogue._read(before[0].first_sequence, SEGMENT) == before[0]
    assert catalogue.sent_below() == 0
    catalogue.refresh()
    assert catalogue.segments == before
    assert catalogue.sent == {before[0].first_sequence, before[1].first_sequence}
    assert catalogue.sent_below() == before[2].first_sequence


def test_a_segment_that_is_gone_is_gone(rig: Rig) -> None:
    """Removed between listing and look: None; before a refresh: not found; after it: not listed."""
    rig.fill(60)
    rig.step()
    catalogue = Catalogue(rig.layout)
    first = catalogue.segments[0]
    rig.layout.segment(0).unlink()
    assert catalogue._read(0, SEGMENT) is None
    with pytest.raises(FileNotFoundError):
        catalogue.open(first)
    catalogue.refresh()
    assert first not in catalogue.segments
    assert catalogue.sent_below() == catalogue.segments[0].first_sequence


def test_a_damaged_header_is_noted(rig: Rig) -> None:
    """The segment is left out and named in `damaged`; one that was read before stays known."""
    rig.fill(60)
    rig.step()
    known = Catalogue(rig.layout)
    second = known.segments[1].first_sequence
    path = rig.layout.segment(second)
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    catalogue = Catalogue(rig.layout)
    assert catalogue.damaged == {second}
    assert second not in {info.first_sequence for info in catalogue.segments}
    known.refresh()
    assert known.segments[1].first_sequence == second


def test_an_empty_spool(tmp_path: Path) -> None:
    """Nothing is stored, nothing is sent."""
    made = Rig(tmp_path)
    catalogue = Catalogue(made.layout)
    assert catalogue.segments == []
    assert catalogue.spool == 0
    assert catalogue.sent_below() == catalogue.stored_below(0) == catalogue.at(7) == 0
    made.crash()


def test_two_spools_have_two_identities(tmp_path: Path) -> None:
    """Also for segments of the same number and the same messages."""
    rigs = [Rig(tmp_path / name) for name in ("one", "two") if not (tmp_path / name).mkdir()]
    catalogues = []
    for made in rigs:
        made.fill(3)
        made.step()
        catalogues.append(Catalogue(made.layout))
        made.crash()
    assert catalogues[0].spool != catalogues[1].spool
    assert catalogues[0].segments[0].identity != catalogues[1].segments[0].identity


def test_sent_or_not_a_header_must_be_one(rig: Rig) -> None:
    """What is no segment is damaged under either name."""
    rig.layout.segment(5, SENT).write_bytes(b"x" * 1000)
    catalogue = Catalogue(rig.layout)
    assert catalogue.damaged == {5}
    with pytest.raises(BadSpool):
        catalogue._header(5, SENT)


def test_segments_that_last(rig: Rig) -> None:
    """Those that were removed stay known, in order, and new ones come behind them; a plain one forgets."""
    rig.fill(60)
    rig.step()
    lasting, plain = Lasting(rig.layout), Catalogue(rig.layout)
    before = plain.segments
    assert len(before) > 2
    for pair in rig.layout.list_segments()[:2]:
        rig.layout.segment(*pair).unlink()
    rig.fill(60)
    rig.step()
    rig.crash()
    for catalogue in (lasting, plain):
        catalogue.refresh()
    assert lasting.segments == [*before[:2], *plain.segments]
    assert plain.segments[: len(before) - 2] == before[2:]
