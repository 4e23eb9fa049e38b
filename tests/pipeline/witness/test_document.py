"""The document of a witness reads as it was written, whenever it is read."""

from __future__ import annotations

import time
from pathlib import Path

from pipeline.witness import document
from pipeline.witness.document import NAME, SpoolRow, TierRow, read_look, write_document
from status import witness
from status.witness import Witness

SPOOL = SpoolRow("ab" * 16, "host1", 100, 1, 2, 3, 4, 5)


def test_the_daemon_reads_what_the_witness_writes(tmp_path: Path) -> None:
    """Each number is where it belongs."""
    write_document(tmp_path, [TierRow("east", 7, 8, 9, "", [SPOOL]), TierRow("west", 0, 0, 0, "away", [])])
    view = Witness(tmp_path).look()
    assert view.problem == ""
    east, west = view.tiers
    assert (east.tier, east.lag, east.records, east.skipped, west.error) == ("east", 7, 8, 9, "away")
    (one,) = east.spools
    found = one.verdict
    assert (one.spool, one.host, found.judged, found.missing, found.late) == (SPOOL.spool, "host1", 100, 1, 2)
    assert (found.duplicated, found.altered_blocks, found.uncompared_blocks) == (3, 4, 5)


def test_a_reader_never_sees_half_of_it(tmp_path: Path) -> None:
    """A new document takes the place of the old one at once."""
    write_document(tmp_path, [TierRow("east", 7, 8, 9, "", [SPOOL])])
    with (tmp_path / NAME).open() as before:
        write_document(tmp_path, [])
        assert '"east"' in before.read()
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_its_age_is_read_by_both(tmp_path: Path) -> None:
    """After the same time a witness has stopped, for an audit and for the daemon; damage has no age."""
    assert document.STALE_S == witness.STALE_S
    assert read_look(tmp_path) is None
    write_document(tmp_path, [TierRow("east", 7, 8, 9, "", [SPOOL])])
    look = read_look(tmp_path)
    assert look is not None
    assert look.spools == {SPOOL.spool}
    assert abs(look.written_s - time.time()) < document.STALE_S
    for text in (
        "",
        "[]",
        "{}",
        '{"written_s": "x", "tiers": []}',
        '{"written_s": NaN, "tiers": []}',
        '{"written_s": 1e300, "tiers": []}',
        '{"written_s": 1}',
        '{"written_s": 1, "tiers": [{"spools": [5]}]}',
        "[" * 99_999,
    ):
        (tmp_path / NAME).write_text(text)
        assert read_look(tmp_path) is None
