"""A replay's way to Kafka: at a rate, to another cluster, while segments go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.layout import Layout
from tests.cli.conftest import PARTITIONS
from tests.cli.program import run
from tests.cli.replay.conftest import MESSAGES
from tests.cli.replay.test_state import found, report, running
from tests.daemon import RunningBruce, consume


@pytest.mark.long
def test_what_goes_while_it_is_sent(stored: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Segments are removed during a replay: their unsent messages are counted, code 1; the rest is sent."""
    stored.stop()
    layout = Layout(stored.spool)
    *older, (kept, _) = layout.list_segments()[:3]
    with running(stored, "--rate", 100, "--json") as process:
        for pair in older:
            layout.segment(*pair).unlink()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    done = json.loads(out)
    arrived = found(kafka, done["sent"])
    missing = set(range(MESSAGES)) - set(arrived)
    assert (len(missing), arrived.total()) == (done["gone"], done["sent"])
    assert max(missing) < kept
    assert (done["messages"], done["sent"] + done["gone"], done["left"]) == (MESSAGES, MESSAGES, 0)
    assert report(stored)["begun"] is None


@pytest.mark.long
def test_at_a_rate(stored: RunningBruce, kafka: EmbeddedKafka) -> None:
    """One second's share goes at once, and then N messages a second; rates below one a second, too."""
    done = report(stored, "--yes", "--to", 300, "--rate", 200)
    assert (done["sent"], done["left"]) == (300, 0)
    assert done["seconds"] >= 0.5
    assert report(stored, "--yes", "--to", 2, "--rate", 0.9, "--timeout", 60)["sent"] == 2
    assert found(kafka, 302).total() == 302


@pytest.mark.long
def test_another_cluster(stored: RunningBruce, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """`--kafka FILE` sends to that cluster, with the rest of the configuration, and nothing to this one."""
    with EmbeddedKafka(brokers=1, topics=[("t", PARTITIONS), ("bruce-progress", 1)]) as other:
        file = tmp_path / "other.toml"
        file.write_text(f'[kafka]\n"bootstrap.servers" = "{other.bootstrap_servers}"\n')
        states = ("--state", tmp_path / "states")
        done = run("replay", "--from", "5", "--kafka", file, *states, "--yes", environ=stored.environ)
        assert done.returncode == 0, done.stderr
        there = consume(other.bootstrap_servers, "t", PARTITIONS, MESSAGES - 5)
        assert sorted(int(record.value()) for record in there) == list(range(5, MESSAGES))
    assert len(consume(kafka.bootstrap_servers, "t", PARTITIONS, MESSAGES)) == MESSAGES
    file.write_text("[spool]\n")
    done = run("replay", "--from", "5", "--kafka", file, environ=stored.environ)
    assert (done.returncode, done.stderr) == (
        2,
        f'{file}: names no brokers: expected [kafka] with "bootstrap.servers"\n',
    )
