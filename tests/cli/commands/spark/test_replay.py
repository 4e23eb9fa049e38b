"""`brucectl spark replay`: its table of topics."""

from __future__ import annotations

import pytest

from tests.pipeline.delivery.test_replay import SECOND, START

pytestmark = pytest.mark.spark


def test_topics_that_are_shown_alike(capsys: pytest.CaptureFixture[str]) -> None:
    """Names that are cut to the same are one row: their sum, the first and the last time of both."""
    from cli.commands.spark.replay import _show
    from pipeline.delivery.replay import Replayed
    from spool.read.selection import TopicCount

    topics = [
        TopicCount("t" * 300, 2, START + SECOND, START + 2 * SECOND),
        TopicCount("t" * 301, 3, START, START + SECOND),
    ]
    _show(Replayed(topics, 5, 0, {}, 5, 0, [], 0.0), None, dry_run=True)
    (row,) = capsys.readouterr().out.splitlines()
    assert row.split("\t") == ["t" * 248 + "…", "5", "2023-11-14T22:13:20Z", "2023-11-14T22:13:22Z"]
