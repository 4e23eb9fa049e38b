"""The short form of tools/fleet, and that it finds what was planted."""

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
    pytest.mark.slow,
    pytest.mark.final,
]


def run(kafka: KafkaCluster, directory: Path, seed: int, **changes: object) -> Evidence:
    """Run it on brokers that are there; its violations."""
    options = replace(FleetOptions(dir=directory / "fleet", seed=seed), **{**SHORT, **changes})
    evidence = Evidence(options.dir, heading=asdict(options))
    run_fleet(options, evidence, kafka)
    return evidence


def test_a_fleet_is_drained_while_an_executor_dies(kafka3: KafkaCluster, tmp_path: Path) -> None:
    """Four spools, two packed, two damaged, one live: nothing lost, in order, and nothing sent again."""
    assert run(kafka3, tmp_path, 11).violations == []


def test_what_is_planted_is_found(kafka3: KafkaCluster, tmp_path: Path) -> None:
    """A message that is called delivered and is not: audit and consumer miss it, and nothing else."""
    found = run(kafka3, tmp_path, 13, plant="lost", spools=2, packed=1, damaged=0, messages=10_000)
    assert found.violations == [
        "the audit finds 1 lost",
        "the audit exits 1",
        "1 messages are lost",
    ]
    audit = json.loads((found.directory / "audit.jsonl").read_text())
    assert audit["sound"] is False
