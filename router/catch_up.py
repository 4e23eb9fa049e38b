"""One pass of the catch-up reader, from the first message that was left to where the live reader is."""

from __future__ import annotations

from dataclasses import dataclass

from router.room import Mask


@dataclass(slots=True)
class CatchUp:
    """One pass of the catch-up reader up to where the live one is."""

    ready: Mask
    """By flat number: the partitions it sends to, from where they are held."""
    sweeping: bool
    """It also looks for messages that no partition is held for, and so must go on to the end."""
    moved: int = 0
    """Messages sent or discarded."""
