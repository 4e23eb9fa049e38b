"""What a PySpark lacks is known by its number, and done in another way, or said."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import spark_release
from pipeline.spark_release import ARROW_FUNCTIONS, FILTERS, OLDEST, READ_LIMITS, has, lacks

OF_4_1 = ["pushFilters spares no segment before 4.1", "brucectl spark stats cannot run before 4.1"]
OF_4_2 = ["a batch of a stream takes all there is before 4.2"]


@pytest.mark.parametrize(
    ("version", "able", "lacking"),
    [
        ("3.5.9", (), OF_4_1 + OF_4_2),
        ("4.0.5", (OLDEST,), OF_4_1 + OF_4_2),
        ("4.1.4", (OLDEST, FILTERS, ARROW_FUNCTIONS), OF_4_2),
        ("4.2.0.dev1", (OLDEST, FILTERS, ARROW_FUNCTIONS, READ_LIMITS), []),
        ("10.0.0", (OLDEST, FILTERS, ARROW_FUNCTIONS, READ_LIMITS), []),
    ],
)
def test_releases_are_told_by_number(
    monkeypatch: pytest.MonkeyPatch, version: str, able: tuple[object, ...], lacking: list[str]
) -> None:
    """Ten is more than four, and what stands behind the second number counts for nothing."""
    monkeypatch.setattr(spark_release, "version", lambda: version)
    every = (OLDEST, FILTERS, ARROW_FUNCTIONS, READ_LIMITS)
    assert [one for one in every if has(one)] == list(able)
    assert lacks() == lacking


def test_what_an_old_one_cannot_do_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Filters are passed over with one sentence; a limit that would not be kept, and stats, end with one."""
    pytest.importorskip("pyspark")
    from pipeline.errors import BadOption, MissingSpark
    from pipeline.schema import SCHEMA
    from pipeline.source import BruceSource
    from pipeline.stats_report import run_stats

    monkeypatch.setattr(spark_release, "version", lambda: "4.0.5")
    for name in ("source", "stats_report"):
        monkeypatch.setattr(f"pipeline.{name}.version", lambda: "4.0.5")
    with pytest.warns(UserWarning, match=r"pushFilters spares nothing here: PySpark 4\.0\.5 tells a source"):
        BruceSource({"path": str(tmp_path), "pushFilters": "true"}).reader(SCHEMA)
    with pytest.raises(
        BadOption, match=r"maxBytesPerTrigger needs PySpark 4\.2 or newer, and this is 4\.0\.5"
    ):
        BruceSource({"path": str(tmp_path), "maxBytesPerTrigger": "1"}).streamReader(SCHEMA)
    with pytest.raises(MissingSpark, match=r"stats needs pyspark 4\.1 or newer, and this is 4\.0\.5"):
        run_stats(None, [str(tmp_path)])  # type: ignore[arg-type]
