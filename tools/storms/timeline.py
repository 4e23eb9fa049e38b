"""The timeline, drawn from a seed: the kills of bruce's processes, and the troubles of brokers."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tools.storms.options import StormOptions


@dataclass(frozen=True, slots=True)
class Action:
    """One action, `at_s` after the storm began."""

    at_s: float
    verb: str
    """kill, and of a broker also freeze; it is started, or thawed, after `pause_s`."""
    target: str | int
    """A role of bruce, or "all"; a broker's number."""
    aimed: bool = False
    """Wait for a burst to be under way; a sleeping worker has little to lose."""
    pause_s: float = 0.0
    """From the burst to the kill of a worker; how long everything, or a broker, stays away."""


def kills(options: StormOptions) -> list[Action]:
    """The kills of bruce's processes, in order."""
    rng = random.Random(options.seed)  # noqa: S311  (to be repeated, not to be secret)
    targets = [what for what, count in options.kills.items() for _ in range(count)]
    rng.shuffle(targets)
    found, now = [], 0.0
    for target in targets:
        now += rng.expovariate(1 / options.gap_s)
        aimed = target != "keeper" and rng.random() < 0.5
        pause = rng.uniform(0, 1.0) if target == "all" else rng.uniform(0, 0.004)
        found.append(Action(now, "kill", target, aimed, pause))
    return found


def duration_s(options: StormOptions) -> float:
    """How long the kills take, about; the brokers' troubles must fit in."""
    last = kills(options)[-1].at_s if sum(options.kills.values()) else 0.0
    return max(last, 2 * options.freeze_s * options.freezes, 3 * options.broker_down_s * options.broker_kills)


def troubles(options: StormOptions) -> list[Action]:
    """The troubles of brokers, in order; one at a time, so that a majority always runs."""
    rng = random.Random(options.seed + 1)  # noqa: S311
    now, found = 0.1 * duration_s(options), []
    for verb, count, down_s in (
        ("kill", options.broker_kills, options.broker_down_s),
        ("freeze", options.freezes, options.freeze_s),
    ):
        for _ in range(count):
            found.append(Action(now, verb, rng.randint(1, options.brokers), pause_s=down_s))
            now += down_s + 0.1 * duration_s(options)
    return found
