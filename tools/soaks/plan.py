"""The troubles of each minute, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

EVERYTHING = 8
"""Minutes after which each trouble has had one of its own."""
STARVE_S = 20.0
"""At least: until the spool is full."""
ROLES = ("ingest", "keeper", "delivery")


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing to go wrong.

    kill: a worker, or "all"; break: a broker dies; freeze: a broker freezes; fill: the disk is full;
    starve: the disk is full, and every broker is frozen; rest: nothing.
    """

    verb: str
    target: str | int = ""
    seconds: float = 0.0
    """How long it lasts."""


def plan(minutes: int, brokers: int, seed: int) -> list[list[Trouble]]:
    """The troubles of each minute, one after the other. A soak of a few minutes has them all, but shorter.

    Workers die rarely, and all at once only in the beginning: a leak shows only in a process that lives long.
    """
    rng = random.Random(seed)  # noqa: S311  (to be repeated, not to be secret)
    turns, found = max(1, -(-minutes // EVERYTHING)), list[Trouble]()
    shorter = 1.0 if minutes >= EVERYTHING else 1 / 3
    for turn in range(turns):
        found += [
            Trouble("kill", "all" if turn == 0 else ROLES[turn % 3]),
            Trouble("freeze", rng.randint(1, brokers), shorter * rng.uniform(10, 30)),
            Trouble("fill", seconds=shorter * rng.uniform(15, 30)),
            Trouble("starve", seconds=max(STARVE_S, shorter * rng.uniform(30, 40))),
            Trouble("kill", ROLES[turn % 3]),
            Trouble("break", rng.randint(1, brokers), shorter * rng.uniform(5, 20)),
            Trouble("fill", seconds=shorter * rng.uniform(15, 30)),
            Trouble("kill", ROLES[(turn + 1) % 3]) if minutes < EVERYTHING else Trouble("rest"),
        ]
    count = max(minutes, EVERYTHING)
    return [found[i * count // minutes : (i + 1) * count // minutes] for i in range(minutes)]
