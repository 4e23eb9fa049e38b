"""The storm's parts: its timeline, its options, what it notices and what it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from tests.cli.daemon.test_kafka_input import DoorBruce
from tools.storms.evidence import Evidence
from tools.storms.kafka_client import CODECS, Client, RunningClient
from tools.storms.options import StormOptions, minute, parse_options
from tools.storms.timeline import kills, troubles
from tools.storms.watcher import adds_up
from tools.verify import verify
from tools.waiting import wait_until


def test_a_seed_gives_the_same_storm_again() -> None:
    """The timeline is drawn from the seed alone, and has the kills that were asked for."""
    options = minute(StormOptions(seed=7))
    assert kills(options) == kills(options) != kills(minute(StormOptions(seed=8)))
    targets = [action.target for action in kills(options)]
    assert {target: targets.count(target) for target in set(targets)} == options.kills
    assert [action.verb for action in troubles(options)] == ["kill", "freeze"]


def test_single_options_count_more_than_the_form() -> None:
    """--minute sets what is not given."""
    options, _ = parse_options(["--minute", "--messages", "5", "--seed", "3"], "")
    assert (options.messages, options.ingest_kills, options.seed) == (5, 5, 3)


def test_a_status_that_does_not_add_up_is_seen() -> None:
    """Each term counts."""
    status = {"received": 10, "delivered": 4, "discarded": {"size": 1, "key": 2}, "backlog": 3}
    assert adds_up(status)
    assert not adds_up(status | {"received": 9})
    assert not adds_up(status | {"discarded": {}})


def test_a_violation_ends_with_one_and_keeps_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The evidence stays, spool included; without a violation the spool goes."""
    for violated, code in ((True, 1), (False, 0)):
        evidence = Evidence(tmp_path / "e", heading={})
        (tmp_path / "e/spool").mkdir()
        evidence.expect(not violated, "one is missing")
        assert evidence.conclude({"seed": 1}, keep=False) == code
        assert (tmp_path / "e/spool").exists() == violated
        assert ("one is missing" in capsys.readouterr().out) == violated


def test_a_kafka_client_sends_what_the_verifier_expects(tmp_path: Path) -> None:
    """All that it says it sent is in Kafka, whole, in its partition; and a message less would be missed."""
    with (
        EmbeddedKafka(topics=[("a", 3), ("b", 3)]) as kafka,
        DoorBruce(tmp_path, kafka.bootstrap_servers) as bruce,
    ):
        client = Client(bruce.address, ["a", "b"], 3, 7, 500, (100, 300), 1, CODECS[0])
        with RunningClient(client) as running:
            wait_until(lambda: bruce.status().received > 100, 60, "its messages")
            report = running.stop()
        bruce.await_status(lambda seen: (seen.received, seen.backlog) == (report["sent"], 0))
        found = verify(kafka.bootstrap_servers, ["a", "b"], {7: report["sent"]})
        assert found.clean
        assert not verify(kafka.bootstrap_servers, ["a", "b"], {7: report["sent"] + 1}).clean
