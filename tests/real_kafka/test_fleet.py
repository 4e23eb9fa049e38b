"""The short form of tools/fleet, with a fault that it must find."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tools.fleets.fleet import run_fleet
from tools.fleets.options import SHORT, FleetOptions
from tools.kafka_cluster import KafkaCluster
from tools.storms.evidence import Evidence

pytestmark = [
    pytest.mark.real_kafka,
    pytest.mark.spark,
    pytest.mark.crash,
    pytest.mark.long,
]


def test_a_fleet_is_drained_while_an_executor_dies(kafka3: KafkaCluster, tmp_path: Path) -> None:
    """Four spools, two packed, two damaged, one live: nothing is lost but what was planted, which is found.

    Keys are in order, the marks know all of it, and daemons send nothing again. A message that was called
    delivered before, and was not, is missed by the audit and by a plain consumer.
    """
    options = replace(FleetOptions(dir=tmp_path / "fleet", seed=11), **SHORT, plant="lost")
    evidence = Evidence(options.dir, heading=asdict(options))
    run_fleet(options, evidence, kafka3)
    assert evidence.violations == ["the audit finds 1 lost", "1 messages are lost"]
    audit = json.loads((options.dir / "audit.jsonl").read_text())
    assert audit["sound"] is False
