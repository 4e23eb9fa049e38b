"""Many states of many lives: for tools/powerloss, and for the tests in their short form."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.spool.powerloss.judge import Judge, Violation
from tests.spool.powerloss.recording import RecordedSpool


@dataclass(slots=True)
class Tally:
    """Counts of the trials, and the violations found."""

    lives: int = 0
    events: int = 0
    messages: int = 0
    prefixes: int = 0
    states: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)


def try_states(
    seed: int,
    *,
    states: int,
    lives: int,
    steps: int,
    prefixes: int,
    show: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Try `states` power losses of `lives` lives; of the first ones, `prefixes` in all, every prefix too.

    The life n has the seed `seed` + n, and its states count from 0. On tmpfs: no disk is waited for.
    """
    tally, started = Tally(), time.monotonic()
    for number in range(lives):
        with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-power-") as name:
            recording = RecordedSpool(Path(name), seed + number).live(steps)
            judge = Judge(recording, Path(name) / "state")
            tally.lives, tally.events = tally.lives + 1, tally.events + len(judge.events)
            tally.messages += len(recording.sent)
            for count in range(judge.first, len(judge.events) + 1):
                if tally.prefixes >= prefixes:
                    break
                tally.prefixes += 1
                _try(tally, seed + number, judge.try_prefix, count)
            for state in range(states // lives + (number < states % lives)):
                tally.states += 1
                _try(tally, seed + number, judge.try_one, state)
                tally.seconds = time.monotonic() - started
                show(tally)
    return tally


def _try(tally: Tally, seed: int, trial: Callable[[int], None], argument: int) -> None:
    try:
        trial(argument)
    except Violation as error:
        tally.violations.append(f"life {seed}: {error}")
