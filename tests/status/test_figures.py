"""One series a topic, however many there are and however they are named."""

from __future__ import annotations

from dataclasses import replace

from status.metrics import MOST_TOPICS, OTHER_TOPICS
from tests.status.test_metrics import FINE, scrape


def test_topics_that_are_shown_alike() -> None:
    """Bytes that are no UTF-8, and a name that equals their escaped form: one series for both."""
    found = scrape(replace(FINE, topics=((b"\xff", 2), (rb"\xff", 3))))["bruce_topic_backlog_messages"]
    assert list(found.values()) == [5]


def test_topics_with_long_names() -> None:
    """Names are cut as brucectl cuts them; those that are cut to the same are one series, with their sum."""
    topics = ((b"t" * 32_767, 2), (b"t" * 300, 3), (b"u", 1))
    by_topic = {name: 10 * count for name, count in topics}
    found = scrape(replace(FINE, topics=topics), by_topic=by_topic)
    cut = frozenset({"instance": "h", "job": "bruce", "topic": "t" * 248 + "…"}.items())
    assert found["bruce_topic_backlog_messages"][cut] == 5
    for event in ("received", "delivered"):
        series = found[f"bruce_topic_messages_{event}_total"]
        assert (series[cut], sorted(series.values())) == (50, [10, 50])


def test_topics_without_number() -> None:
    """Invented topic names do not make series without bound: the largest backlogs, and one for the rest."""
    topics = tuple((b"t%d" % n, n + 1) for n in range(3 * MOST_TOPICS))
    found = scrape(replace(FINE, topics=topics))["bruce_topic_backlog_messages"]
    told = {dict(labels)["topic"]: count for labels, count in found.items()}
    assert len(told) == MOST_TOPICS + 1
    assert sum(told.values()) == sum(count for _, count in topics)
    assert told[f"t{3 * MOST_TOPICS - 1}"] == 3 * MOST_TOPICS
    assert told[OTHER_TOPICS] == sum(range(2 * MOST_TOPICS + 1))
