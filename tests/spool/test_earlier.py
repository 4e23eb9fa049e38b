"""A spool of an earlier release, in any state: nothing of it is lost, and its segments do not grow."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from spool.format import segment
from spool.format.segment_format import SECRET_BYTES, VERSION, encode_header
from spool.fsck.check import Check
from spool.fsck.finding import Severity
from tests.spool.fixture import SpoolFixture


@pytest.fixture(params=range(1, VERSION))
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> SpoolFixture:
    """A spool whose segments are of an earlier version, the last one in use."""
    with pytest.MonkeyPatch.context() as patch:
        changed = {"version": request.param} | ({"secret": bytes(SECRET_BYTES)} if request.param == 1 else {})
        patch.setattr(segment, "encode_header", lambda **fields: encode_header(**fields | changed))
        spool = SpoolFixture(tmp_path)
        spool.fill(60)
        spool.step()
        spool.fill(2)
    assert {s.header["version"] for s in spool.segments()} == {request.param}
    return spool


@pytest.mark.parametrize("end", ["stop", "crash", "power"])
def test_what_it_left_is_read_and_what_comes_has_a_secret(earlier: SpoolFixture, end: str) -> None:
    """Messages keep their numbers, new ones go into new segments, and the check finds nothing."""
    before = earlier.records()
    if end == "stop":
        earlier.stop()
    elif end == "crash":
        earlier.crash()
    else:
        earlier.step()
        earlier.lose_power(random.Random(1))
    earlier.open()
    old = len(earlier.segments())
    sent = earlier.fill(20)
    earlier.step()
    found = earlier.records()
    assert found[: len(before)] == before
    assert [data for _, data in found[len(before) :]] == sent
    versions = [s.header["version"] for s in earlier.segments()]
    assert VERSION not in versions[:old]
    assert set(versions[old:]) == {VERSION}
    earlier.stop()
    wrong = [finding for finding in Check().spool(earlier.layout) if finding.severity != Severity.NOTE]
    assert wrong == []
