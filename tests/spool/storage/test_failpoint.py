"""The places to die at: each has its meaning, and is in the code once."""

from __future__ import annotations

import re

from spool.storage.failpoint import POINTS
from tests.daemon import ROOT


def test_every_point_in_the_code_is_in_the_table() -> None:
    """Each failpoint of the table has its meaning there, and occurs in the code once."""
    places = [
        name
        for folder in ("spool", "ingest", "router", "dispatch", "pipeline", "cli")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r'\breach\("([a-z.]+)"\)', path.read_text())
    ]
    assert sorted(places) == sorted(POINTS)
