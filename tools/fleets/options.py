"""How large a fleet is. The defaults are those of the proof; `--short` is the form that the tests run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tools.bruce_process import ROOT
from tools.storms.options import new_seed

PLANTS = ("", "lost", "forgotten")
MODES = ("at_least_once", "exactly_once")


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Every number of a run."""

    dir: Path = ROOT / ".cache/fleet"
    seed: int = 0
    spools: int = 20
    messages: int = 10_000_000
    """In all spools together, before the drain begins."""
    topics: int = 4
    partitions: int = 6
    copies: int = 3
    """Of each partition. With one copy, a broker stays frozen until the executor is dead, so that even a job
    of seconds is killed in its middle; with more, a broker is killed and started again."""
    mode: str = "at_least_once"
    """`[dispatch] mode`; with exactly_once there may be no duplicate at all."""
    packed: int = 5
    """Spools whose segments are compressed."""
    damaged: int = 3
    """Spools with damaged frames; one of them is packed, too."""
    damaged_frames: int = 4
    """In each of them."""
    live_rate: int = 1000
    """Messages a second that the live daemon takes in meanwhile."""
    master: str = "local-cluster[2,1,2048]"
    kill_at: float = 0.2
    """Share of the messages that are in Kafka when an executor is killed."""
    broker_down_s: float = 5.0
    patience_s: float = 7200.0
    """Longest time for one step."""
    plant: str = ""
    """A fault that must be found: "lost", a message marked as delivered that was not; "forgotten", the marks
    of one spool removed after the drain."""
    keep: bool = False
    """Keep spools and Kafka's data also after a run without faults."""

    @property
    def topic_names(self) -> list[str]:
        return [f"fleet-{self.seed}-{number}" for number in range(self.topics)]

    @property
    def witness(self) -> str:
        """The topic of the message by which a daemon shows that it has passed everything before it."""
        return f"fleet-{self.seed}-witness"

    @property
    def per_spool(self) -> int:
        return self.messages // self.spools


SHORT: dict[str, Any] = {
    "spools": 4,
    "messages": 40_000,
    "topics": 3,
    "copies": 1,
    "packed": 2,
    "damaged": 2,
    "damaged_frames": 2,
    "live_rate": 300,
    "master": "local-cluster[2,1,1024]",
    "kill_at": 0.02,
    "patience_s": 300.0,
}


def parse_options(arguments: Sequence[str] | None, description: str) -> FleetOptions:
    """The numbers that the command line gives."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--short", action="store_true", help="the short form; single options still count")
    choices = {"plant": PLANTS, "mode": MODES}
    for option in fields(FleetOptions):
        name = "--" + option.name.replace("_", "-")
        if isinstance(option.default, bool):
            parser.add_argument(name, action="store_const", const=True)
        else:
            parser.add_argument(
                name,
                type=type(option.default),
                choices=choices.get(option.name),
                help=f"default {option.default}",
            )
    given = parser.parse_args(arguments)
    named = {
        f.name: getattr(given, f.name) for f in fields(FleetOptions) if getattr(given, f.name) is not None
    }
    options = FleetOptions(**{**(SHORT if given.short else {}), **named})
    # Daemons and jobs have working directories of their own.
    return replace(options, dir=options.dir.resolve(), seed=options.seed or new_seed())
