"""`brucectl stats`: what it writes."""

from __future__ import annotations

import json

import pytest

from cli.commands.stats import _show
from spool.format.wire import encode
from tests.cli.program import run
from tests.pipeline.test_stats import store
from tests.spool.fixture import SpoolFixture


@pytest.fixture
def spool(tmp_path_factory: pytest.TempPathFactory) -> SpoolFixture:
    """A spool with four messages, and five refused datagrams."""
    made = SpoolFixture(tmp_path_factory.mktemp("stats"))
    store(made, 0, 3)
    made.append([encode(b"orders", b"v")], refused={1: (5, b"\0")})
    made.step()
    made.crash()
    return made


def test_json(spool: SpoolFixture, caplog: pytest.LogCaptureFixture) -> None:
    """The figures, and what was discarded at intake, by reason; and nothing that a library says."""
    code, out, err = run("stats", str(spool.options.directory), "--json")
    assert (code, err, caplog.messages) == (0, "", [])
    found = json.loads(out)
    assert (found["version"], found["total"]["messages"]) == (1, 4)
    assert [(row["topic"], row["messages"]) for row in found["discards"]] == [("", 5)]
    assert [(row["reason"], row["messages"]) for row in found["discard_hours"]] == [
        (found["discards"][0]["reason"], 5)
    ]


def test_reasons_have_their_words(spool: SpoolFixture) -> None:
    """In the tables, by topic and by hour; a topic that no message has leaves the first table empty."""
    code, out, err = run("stats", str(spool.options.directory), "--hours")
    assert (code, err) == (0, "")
    said = [line.split("\t")[-2] for line in out.splitlines() if "short" in line]
    assert said == ["short (shorter than its header)"] * 2


def test_topics_command_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Topics and the most frequent key are cut or escaped; discards that are shown alike are one row."""
    odd, long = "a\x1b[31m\tb", "t" * 32_767
    names = ("messages", "bytes", "peak", "median_bytes", "p99_bytes", "most_bytes", "keys")
    figures = {**dict.fromkeys(names, 1), "top_keys": [{"key": odd, "messages": 1}]}
    topics = [{"topic": name, **figures, "hours": [{"hour": "h", **figures}]} for name in (odd, long)]
    discards = [("/s", long, "short", 1), ("/s", long + "t", "short", 2), ("/s", odd, "short", 4)]
    _show(topics, discards, [], hours=True)
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    escaped, cut = r"a\x1b[31m\tb", "t" * 248 + "…"
    assert [row[0] for row in rows[:4]] == [escaped, escaped, cut, cut]
    assert {row[9] for row in rows[:4]} == {escaped}
    because = "short (shorter than its header)"
    assert rows[5:] == [["/s", cut, because, "3"], ["/s", escaped, because, "4"]]
