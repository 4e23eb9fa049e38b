"""How a daemon stands, in one line for who started it, from the shared page alone."""

from __future__ import annotations

import numpy as np

from cli.room import list_full
from spool.page import Field, read_text


def describe(page: np.ndarray) -> str:
    """What is wrong first; without that, what was done since the page was made."""
    if trouble := read_text(page, Field.TROUBLE):
        return trouble
    if full := next(list_full(page), None):
        return full.sentence
    if page[Field.HELD]:
        return "the intake is stopped by an operator: senders wait"
    delivered, discarded = int(page[Field.DELIVERED]), int(page[Field.DISCARDED])
    return f"messages are taken in; {delivered:,} delivered, {discarded:,} discarded"
