"""The document of a witness, DIR/witness.json: others show it; it is written at each look.

{"version": 1,
 "written_s": n,                     seconds since the epoch
 "tiers": [{"tier": name,
            "lag": n,                offsets that are not read yet
            "records": n,            records read so far that name a message
            "skipped": n,            offsets that Kafka dropped before they were read
            "error": text,           why nothing comes, or nothing
            "spools": [{"spool": uuid, "host": name,
                        "judged": n,            messages that must be there
                        "missing": n,           those of them that are not
                        "late": n,              messages that will have to be there, and are not yet
                        "duplicated": n,        messages that are there more than once
                        "altered_blocks": n,    blocks of 4,096 messages that are not as they were stored
                        "uncompared_blocks": n  blocks that cannot be compared
                        }, ...]}, ...]}
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

VERSION = 1
NAME = "witness.json"
STALE_S = 300.0
"""A document that is older is of a witness that has stopped."""
_MOST_BYTES = 8 << 20
_MOST_S = 253_402_300_800
"""The year 10,000."""


class SpoolRow(NamedTuple):
    """One spool in one tier; the fields are those of the document."""

    spool: str
    host: str
    judged: int
    missing: int
    late: int
    duplicated: int
    altered_blocks: int
    uncompared_blocks: int


class TierRow(NamedTuple):
    """One tier; the fields are those of the document."""

    tier: str
    lag: int
    records: int
    skipped: int
    error: str
    spools: Sequence[SpoolRow]


def write_document(directory: Path, tiers: Sequence[TierRow]) -> None:
    """Replace the document in a directory: readers see the one before, or this one. Raises OSError.

    It is not synced: the next look writes it again.
    """
    found = [{**tier._asdict(), "spools": [spool._asdict() for spool in tier.spools]} for tier in tiers]
    text = json.dumps({"version": VERSION, "written_s": time.time(), "tiers": found}, indent=1)
    fresh = directory / f"{NAME}.tmp"
    fresh.write_text(text + "\n")
    os.replace(fresh, directory / NAME)


class Look(NamedTuple):
    """The last look of a witness."""

    written_s: float
    """Seconds since the epoch."""
    spools: frozenset[str]
    """The uuids of those that it watches."""


def read_look(directory: Path) -> Look | None:
    """The last look, by the document in a directory; None: there is none to read."""
    try:
        with (directory / NAME).open("rb") as file:
            told = json.loads(file.read(_MOST_BYTES))
        written_s = float(told["written_s"])
        spools = frozenset(str(one["spool"]) for tier in told["tiers"] for one in tier["spools"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return Look(written_s, spools) if 0 <= written_s < _MOST_S else None
