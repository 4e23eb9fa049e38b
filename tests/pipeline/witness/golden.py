"""The golden file of a witness: what every later version reads.

python -m tests.pipeline.witness.golden DIRECTORY

This wrote tests/golden/witness-v1.db, once, in the release that had this version. Never write it again: a
difference there means that the files of users can no longer be read.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from pipeline.witness.state import WitnessState
from pipeline.witness.tier import UNTIMED, TierState
from tests.pipeline.witness.model import Model, Seen, columns

SPOOLS = [bytes(range(n, n + 16)).hex() for n in (1, 100)]
POSITIONS = {("clicks", 0): 2**40, ("clicks", 11): 0, ("k\u00e4se", 3): 17}
FACTS: dict[str, str | int | float] = {"cluster": "\u00e4b", "begun_s": 1.5, "n": -3}
BURST = [
    *(Seen(SPOOLS[0], at, at * 7919 - (1 << 62), 1_700_000_000_000 + at) for at in range(5000)),
    *(Seen(SPOOLS[0], at, 1, 1) for at in (5, 4999, 4999)),
    *(Seen(SPOOLS[1], at, -at, UNTIMED) for at in range(4000, 70_000, 13)),
    *(Seen(SPOOLS[1], at, 3, -1) for at in (2**24 - 1, 2**24, 2**62, 2**63 - 1, -1)),
    Seen(bytes(16).hex(), 1, 1, 1),
]


def fill(tier: TierState) -> None:
    """Let a tier see all of it."""
    tier.watch(dict.fromkeys(SPOOLS, 4096))
    tier.absorb(*columns(BURST))
    tier.spool(SPOOLS[0]).settle(np.array([0]))
    tier.positions |= POSITIONS
    tier.facts |= FACTS
    tier.skipped = 12


def model() -> Model:
    """The same, of a model."""
    found = Model()
    for spool in SPOOLS:
        found.watch(spool, 4096)
    found.absorb(BURST)
    found.settle(SPOOLS[0], [0])
    return found


if __name__ == "__main__":
    state = WitnessState(Path(sys.argv[1]))
    fill(state.tier("main"))
    state.tier("empty")
    state.checkpoint()
    state.close()
