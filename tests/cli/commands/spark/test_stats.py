"""`brucectl spark stats` and `brucectl spark query`: what they write, and their exit codes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

import pytest

from spool.format.wire import encode
from tests.pipeline.test_stats import store
from tests.spark import Done
from tests.spool.fixture import SpoolFixture

pytestmark = pytest.mark.spark


def test_command(job: Callable[..., Done], spool: SpoolFixture) -> None:
    """`brucectl spark stats --json` has the figures, and what was discarded at intake, by reason."""
    store(spool, 0, 3)
    spool.append([encode(b"orders", b"v")], refused={1: (5, b"\0")})
    spool.step()
    spool.crash()
    done = job("stats", spool.options.directory, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["total"]["messages"] == 4
    assert [(row["topic"], row["messages"]) for row in found["discards"]] == [("", 5)]
    assert [(row["reason"], row["messages"]) for row in found["discard_hours"]] == [
        (found["discards"][0]["reason"], 5)
    ]


def test_topics_command_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Topics and the most frequent key are cut or escaped; discards that are shown alike are one row."""
    from cli.commands.spark.stats import _show

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


def test_reasons_have_their_words(
    spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the tables, by topic and by hour."""
    from cli.commands.spark import stats
    from pipeline import stats as job_stats

    spool.append([encode(b"orders", b"v")], refused={1: (5, b"\0")})
    spool.step()
    spool.crash()
    monkeypatch.setattr(stats, "job_session", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(job_stats, "run_stats", lambda *_: {"topics": []})
    stats.stats([str(spool.options.directory)], hours=True)
    said = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[-2] for line in said if line] == ["short (shorter than its header)"] * 2


@pytest.mark.spark
def test_query_command(job: Callable[..., Done], spool: SpoolFixture) -> None:
    """`brucectl spark query` writes rows, and nothing else; wrong SQL exits 2."""
    spool.append([encode(b"orders", b"%d" % i) for i in range(3)])
    spool.step()
    sql = "SELECT value, topic FROM spool ORDER BY sequence"
    done = job("query", sql, spool.options.directory, "--form", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"value": str(i), "topic": "orders"} for i in range(3)
    ]
    done = job("query", "SELECT nope FROM spool", spool.options.directory, "--form", "json")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
