"""How hard a storm is. The defaults are those of the proof; `--minute` is the form that the tests run."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tools.bruce_process import ROOT


@dataclass(frozen=True, slots=True)
class StormOptions:
    """Every number of a storm or an outage."""

    dir: Path = ROOT / ".cache/storm"
    seed: int = 0
    embedded: bool = False
    brokers: int = 3
    messages: int = 2_000_000
    """Messages, at least."""
    senders: int = 4
    topics: int = 3
    partitions: int = 6
    ingest_kills: int = 50
    delivery_kills: int = 50
    keeper_kills: int = 20
    kafka_kills: int = 10
    kafka_clients: int = 2
    """Senders that are Kafka clients; without one the Kafka worker does not run."""
    kafka_rate: int = 500
    """Messages a second of each of them."""
    all_kills: int = 5
    gap_s: float = 2.0
    """Mean time between two kills; the shape is exponential."""
    broker_kills: int = 1
    broker_down_s: float = 10.0
    freezes: int = 1
    freeze_s: float = 60.0
    mode: str = "at_least_once"
    """`[dispatch] mode`; with exactly_once there may be no duplicate at all."""
    window_messages: int = 20_000
    cut_s: float = 0.0
    """With --outage: how long all brokers are cut off in the middle of the load; 0: down from the start."""
    segment_mib: int = 64
    """Size of a segment: a small one is full, sealed and renamed often."""
    room_mib: int = 64 << 10
    """`max_bytes` of the spool."""
    settle_s: float = 600.0
    """Longest time for the backlog to be delivered at the end."""
    keep: bool = False
    """Keep spool and Kafka's data also after a run without faults."""

    @property
    def topic_names(self) -> list[str]:
        return [f"storm-{number}" for number in range(self.topics)]

    @property
    def kills(self) -> dict[str, int]:
        """{target: how often}."""
        return {
            "ingest": self.ingest_kills,
            "delivery": self.delivery_kills,
            "keeper": self.keeper_kills,
            "kafka": self.kafka_kills if self.kafka_clients else 0,
            "all": self.all_kills,
        }


MINUTE: dict[str, Any] = {
    "messages": 200_000,
    "ingest_kills": 5,
    "delivery_kills": 5,
    "keeper_kills": 2,
    "kafka_kills": 3,
    "all_kills": 1,
    "gap_s": 1.0,
    "broker_down_s": 3.0,
    "freeze_s": 4.0,
    "segment_mib": 4,
    "settle_s": 60.0,
}
OUTAGE: dict[str, Any] = {"messages": 5_000_000}


def minute(options: StormOptions) -> StormOptions:
    """The one-minute form."""
    return replace(options, **MINUTE)


def seeded(options: StormOptions) -> StormOptions:
    """With a seed of its own, when none was given."""
    return options if options.seed else replace(options, seed=new_seed())


def new_seed() -> int:
    """A random seed."""
    return secrets.randbelow(1 << 31) + 1


def parse_options(
    arguments: Sequence[str] | None, description: str
) -> tuple[StormOptions, argparse.Namespace]:
    """(the numbers, the other arguments: `outage`, `move_leaders`)."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--minute", action="store_true", help="the one-minute form; single options still count"
    )
    parser.add_argument(
        "--outage", action="store_true", help="no kills at random: Kafka is away from the start"
    )
    parser.add_argument(
        "--move-leaders", action="store_true", help="with --outage: one broker froze, then its leaders moved"
    )
    for option in fields(StormOptions):
        name = "--" + option.name.replace("_", "-")
        if isinstance(option.default, bool):
            parser.add_argument(name, action="store_const", const=True)
        else:
            parser.add_argument(name, type=type(option.default), help=f"default {option.default}")
    given = parser.parse_args(arguments)
    preset = {**(OUTAGE if given.outage else {}), **(MINUTE if given.minute else {})}
    chosen = {
        f.name: getattr(given, f.name) for f in fields(StormOptions) if getattr(given, f.name) is not None
    }
    return seeded(StormOptions(**{**preset, **chosen})), given
