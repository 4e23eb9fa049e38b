"""Consume whole topics, and compare what arrived with the counts that the senders of tools/load kept.

    python -m tools.verify --bootstrap 127.0.0.1:9092 --topics a b --sent load.json

`--sent` is the report of tools/load. Prints the findings as JSON (verify_judge.Findings). Exits 1 when
something is lost, altered, out of order, or was received twice; duplicates are counted only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka.admin import AdminClient

from tools.verify_consume import RECORD
from tools.verify_judge import Findings, Records, judge

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 1800.0


class Unreadable(Exception):
    """The topics could not be read to their ends."""


def find_partitions(bootstrap: str, topics: Sequence[str]) -> list[tuple[str, int, int]]:
    """(topic, its number, partition) of every partition. Raises Unreadable when a topic is not there."""
    metadata = AdminClient({"bootstrap.servers": bootstrap, "log_level": 4}).list_topics(timeout=30)
    missing = [topic for topic in topics if topic not in metadata.topics or metadata.topics[topic].error]
    if missing:
        raise Unreadable(f"Kafka has no topic {', '.join(missing)}")
    return [
        (topic, number, partition)
        for number, topic in enumerate(topics)
        for partition in sorted(metadata.topics[topic].partitions)
    ]


def read_topics(
    bootstrap: str, topics: Sequence[str], *, processes: int = 2, deadline_s: float = DEADLINE_S
) -> tuple[Records, int]:
    """(every message of the topics, messages that Kafka no longer had). Raises Unreadable."""
    places = find_partitions(bootstrap, topics)
    with tempfile.TemporaryDirectory(prefix="verify-") as directory:
        outputs = [Path(directory, f"{i}.npy") for i in range(min(processes, len(places)))]
        readers = [
            _start_reader(bootstrap, output, places[i :: len(outputs)]) for i, output in enumerate(outputs)
        ]
        try:
            said = [reader.communicate(timeout=deadline_s)[0] for reader in readers]
        except subprocess.TimeoutExpired:
            raise Unreadable(f"the topics were not read within {deadline_s:.0f} s") from None
        finally:
            for reader in readers:
                reader.kill()
                reader.wait()
        if any(reader.returncode for reader in readers):
            raise Unreadable("a reader failed; its output is above")
        dropped = sum(json.loads(line)["dropped"] for line in said)
        return np.concatenate([np.zeros(0, RECORD), *(np.load(output) for output in outputs)]), dropped


def _start_reader(bootstrap: str, output: Path, places: list[tuple[str, int, int]]) -> subprocess.Popen[str]:
    arguments = [bootstrap, str(output), json.dumps(places)]
    command = [sys.executable, "-m", "tools.verify_consume", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def verify(bootstrap: str, topics: Sequence[str], sent: Mapping[int, int], *, processes: int = 2) -> Findings:
    """Read the topics and judge what is in them. Raises Unreadable."""
    records, dropped = read_topics(bootstrap, topics, processes=processes)
    return judge(records, sent, dropped=dropped)


def counts_of(report: Mapping[str, Any]) -> dict[int, int]:
    """{sender: sent} of a report of tools/load."""
    return {row["sender"]: row["sent"] for row in report["senders"]}


def main() -> int:
    """Verify what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topics", nargs="+", required=True)
    parser.add_argument("--sent", type=Path, required=True, metavar="FILE")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    sent = counts_of(json.loads(options.sent.read_text()))
    try:
        findings = verify(options.bootstrap, options.topics, sent, processes=options.processes)
    except Unreadable as error:
        print(f"tools/verify: {error}", file=sys.stderr)
        return 3
    print(json.dumps(findings.as_dict(), indent=2))
    return 0 if findings.clean else 1


if __name__ == "__main__":
    sys.exit(main())
