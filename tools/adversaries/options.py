"""How long and how hard. The defaults are those of the proof."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.bruce_process import ROOT
from tools.storms.options import new_seed

OVERHEAD_S = 17.0
"""Of an attack, about: starts, settling, judging."""
LEAST_S = 4.0


@dataclass(frozen=True, slots=True)
class Options:
    """Every number of a run."""

    dir: Path = ROOT / ".cache/adversary"
    seed: int = 0
    minutes: float = 25.0
    only: tuple[str, ...] = ()
    real: bool = False
    """Deliver to Apache Kafka, not to the embedded one."""
    rate: int = 500
    """Messages a second of the honest senders together."""
    settle_s: float = 60.0
    """The time for all honest messages to arrive after the attack."""
    counts: bool = False
    """Judge messages alone, neither latency nor memory nor time: for a machine with other work."""
    keep: bool = False

    def phase_s(self, least: Sequence[float]) -> float:
        """Seconds of a phase: each attack has two, the control and the attack.

        `least`: seconds that the attack phase of each attack takes at least, 0 for most. Those that take more
        take it from the phases of all others.
        """
        left, phases = 60 * self.minutes - OVERHEAD_S * len(least), 2 * len(least)
        for seconds in sorted(least, reverse=True):
            if seconds * phases > left:
                left, phases = left - seconds, phases - 1
        return max(LEAST_S, left / max(1, phases))


def parse_options(
    arguments: Sequence[str] | None, description: str, names: Sequence[str]
) -> tuple[Options, bool]:
    """(the numbers, whether only the list of attacks is wanted)."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    default = Options()
    parser.add_argument("--minutes", type=float, default=default.minutes, help="of all attacks; default 25")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="ATTACK")
    parser.add_argument("--list", action="store_true", help="print the attacks, and run none")
    parser.add_argument("--real", action="store_true", help="deliver to Apache Kafka")
    parser.add_argument("--rate", type=int, default=default.rate, help="of the honest; default 500/s")
    parser.add_argument("--settle-s", type=float, default=default.settle_s)
    parser.add_argument("--dir", type=Path, default=default.dir)
    parser.add_argument(
        "--counts", action="store_true", help="judge messages alone, no latency, memory or time"
    )
    parser.add_argument("--keep", action="store_true", help="keep spools and logs also where all held")
    given = vars(parser.parse_args(arguments))
    listed = given.pop("list")
    given["only"], given["seed"] = tuple(given["only"]), given["seed"] or new_seed()
    given["dir"] = given["dir"].resolve()
    return Options(**given), listed
