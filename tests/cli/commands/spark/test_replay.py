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


def test_reasons_have_their_words(capsys: pytest.CaptureFixture[str]) -> None:
    """A replay and a drain explain why Kafka refuses messages; one has no plural."""
    from cli.commands.spark.drain import _done
    from cli.commands.spark.replay import _show
    from pipeline.delivery.replay import Replayed
    from pipeline.delivery.sending import Sent

    _show(Replayed([], 2, 1, {"too_large": 1}, 0, 0, [], 0.0), None, dry_run=False)
    assert capsys.readouterr().err.splitlines() == [
        "1 message was refused for good: too_large (larger than Kafka takes)",
        "1 message sent in 0.0 s",
    ]
    sent = Sent(2, {"t": 2}, 1, {"too_large": 1}, 0, [], 0.0)
    told = "1 of 2 messages delivered in 0.0 s, 1 refused as too_large (larger than Kafka takes)"
    assert _done(sent) == told
