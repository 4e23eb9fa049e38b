"""How large a proof of the witness is. The defaults are those of the proof; `--short` is for the tests."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tools.bruce_process import ROOT
from tools.storms.options import new_seed

MODES = ("at_least_once", "exactly_once")
KINDS = ("witness", "daemon", "east", "keeper", "witness", "west", "daemon")
"""The kinds of kills, by turns."""
MEAN_S = {"witness": 3.0, "daemon": 4.0, "keeper": 2.0, "east": 14.0, "west": 14.0}
"""About how long each kill takes, with the pause before it."""
SETTLING_S = 8.0


@dataclass(frozen=True, slots=True)
class WitnessOptions:
    """Every number of a run."""

    dir: Path = ROOT / ".cache/witness"
    seed: int = 0
    messages: int = 200_000
    """Of all daemons and the spool that is made by hand."""
    daemons: int = 2
    topics: int = 3
    partitions: int = 4
    brokers: int = 1
    """Of east. With three of them leaders move at each kill."""
    kills: int = 14
    mode: str = "at_least_once"
    """`[dispatch] mode`; with exactly_once only planted duplicates may be there."""
    late_s: float = 5.0
    """Of the witness."""
    segment_kib: int = 512
    """Of a daemon's segments."""
    kept_kib: int = 2048
    """Delivered segments that daemons keep: the others leave during the run."""
    patience_s: float = 300.0
    """Longest time for one step."""
    keep: bool = False
    """Keep spools and Kafka's data also after a run without faults."""

    @property
    def topic_names(self) -> list[str]:
        return [f"witness-{number}" for number in range(self.topics)]

    @property
    def refused_topic(self) -> str:
        """The topic whose messages Kafka refuses."""
        return "witness-refused"

    @property
    def planted(self) -> int:
        """Messages of the spool that is made by hand."""
        return self.messages // 8

    @property
    def per_daemon(self) -> int:
        return (self.messages - self.planted) // self.daemons

    @property
    def kinds(self) -> list[str]:
        """The kinds of all kills, not yet shuffled."""
        return [KINDS[number % len(KINDS)] for number in range(self.kills)]

    @property
    def rate(self) -> int:
        """Messages a second of each daemon: they take about the time of the kills."""
        return int(self.per_daemon / (SETTLING_S + sum(MEAN_S[kind] for kind in self.kinds))) + 1


SHORT: dict[str, Any] = {
    "messages": 60_000,
    "kills": 6,
    "segment_kib": 256,
    "kept_kib": 1024,
}


def parse_options(arguments: Sequence[str] | None, description: str) -> WitnessOptions:
    """The numbers that the command line gives."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--short", action="store_true", help="the short form; single options still count")
    for option in fields(WitnessOptions):
        name = "--" + option.name.replace("_", "-")
        if isinstance(option.default, bool):
            parser.add_argument(name, action="store_const", const=True)
        else:
            choices = MODES if option.name == "mode" else None
            parser.add_argument(
                name, type=type(option.default), choices=choices, help=f"default {option.default}"
            )
    given = parser.parse_args(arguments)
    named = {
        one.name: getattr(given, one.name)
        for one in fields(WitnessOptions)
        if getattr(given, one.name) is not None
    }
    options = WitnessOptions(**{**(SHORT if given.short else {}), **named})
    # Daemons and the witness have working directories of their own.
    return replace(options, dir=options.dir.resolve(), seed=options.seed or new_seed())
