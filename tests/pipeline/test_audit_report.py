"""The report of an audit: its verdict, its JSON, its sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from pipeline.audit import COUNTS
from pipeline.audit_report import Report, SpoolReport


def make(*, unreadable: int = 0, dropped: int = 0, **counts: int) -> Report:
    """A report over one topic."""
    spool = SpoolReport("ab", "/spool", 10, unreadable)
    return Report([spool], {"t": {**dict.fromkeys(COUNTS, 0), **counts}}, {"t": dropped} if dropped else {})


def test_json_has_the_documented_shape() -> None:
    """Version, verdict, spools, topics and their sum are in the fields that other tools read."""
    counts = {**dict.fromkeys(COUNTS, 0), "stored": 10, "once": 9, "lost": 1}
    assert make(stored=10, once=9, lost=1, dropped=4).as_json() == {
        "version": 1,
        "sound": False,
        "spools": [{"spool": "ab", "directory": "/spool", "stored": 10, "unreadable": 0, "damaged": ()}],
        "topics": [{"topic": "t", **counts}],
        "total": counts,
        "by": [],
        "groups": [],
        "dropped": {"t": 4},
        "read_by": "bruce-kafka",
        "unread": [],
    }


def test_parquet_has_the_groups(tmp_path: Path) -> None:
    """A row a group: topic, dimensions and counts, typed, with nulls where nothing is known."""
    counts = dict.fromkeys(COUNTS, 1)
    groups = [{"topic": "t", "partition": part, "host": "h", **counts} for part in (None, 2)]
    Report([], {}, {}, ("partition", "host"), groups).write_parquet(str(tmp_path / "p"))
    table = parquet.read_table(tmp_path / "p")
    assert table.to_pylist() == groups
    assert str(table.schema.field("partition").type) == "int32"


@pytest.mark.parametrize("fault", ["lost", "altered", "unreadable"])
def test_a_fault_is_not_sound(fault: str) -> None:
    """Lost, altered or unreadable messages make the audit fail."""
    assert not make(**{fault: 1}).sound


@pytest.mark.parametrize(
    "finding",
    ["duplicated", "discarded", "backlog", "withheld", "expired", "reordered", "misplaced", "foreign"],
)
def test_a_finding_is_no_fault(finding: str) -> None:
    """Effects that at-least-once delivery allows, or the daemon accounts for, do not."""
    assert make(**{finding: 1}).sound


def test_the_sentence_says_the_worst_first() -> None:
    """Faults come before findings; where Kafka dropped records a loss may be its retention: that is said."""
    assert make(stored=5, once=5).sentence() == "5 of 5 stored messages are in Kafka: nothing is missing."
    assert make(stored=5, once=3, duplicated=1, lost=1, unreadable=2, dropped=7).sentence() == (
        "4 of 7 stored messages are in Kafka: 1 lost, 2 unreadable in the spool (1 duplicated). "
        "Kafka itself has dropped 7 records of these topics since."
    )
    by_connector = replace(make(stored=5, once=5), read_by="kafka")
    assert by_connector.sentence().endswith("nothing is missing. Kafka was read by Spark's own connector.")


def test_what_was_not_read_is_not_sound() -> None:
    """The disk may give it tomorrow: until then it is unknown."""
    report = replace(make(stored=10, once=10), unread=["/spool/segments/1.seg: Input/output error"])
    assert not report.sound
    assert "the disk gives an error for /spool/segments/1.seg: Input/output error" in report.sentence()


def test_a_file_that_takes_nothing(tmp_path: Path) -> None:
    """The error names it, and whatever has this name stays."""
    place = tmp_path / "full"
    place.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        Report([], {}, {}, (), []).write_parquet(str(place))
    assert caught.value.filename == str(place)
    assert place.is_symlink()
