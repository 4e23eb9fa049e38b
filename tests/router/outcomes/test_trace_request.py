"""The request of a trace, and when it is over."""

from __future__ import annotations

import time

import pytest

from router.outcomes.trace_request import MOST_BYTES, TraceRequest, decode
from router.timing import LONGEST_TRACE_S


def test_an_ask_as_it_stands_in_its_file() -> None:
    """An encoded request is decoded; another release's, or rubbish, asks for nothing; bytes are bounded."""
    ask = TraceRequest((b"t", b"\xff"), b"\x00", time.monotonic_ns() + 10**9, 1000, payload=True)
    assert decode(ask.encode()) == ask
    assert decode(ask.encode().replace(b'"version": 1', b'"version": 2')) is None
    large = TraceRequest((), b"k", 1, 10 * MOST_BYTES, payload=False)
    found = decode(large.encode())
    assert found is not None
    assert found.most_bytes == MOST_BYTES
    for rubbish in (b"", b"[]", b"{}", b"\xff", ask.encode()[:-1]):
        assert decode(rubbish) is None


@pytest.mark.parametrize(("seconds", "over"), [(-1.0, True), (10.0, False), (LONGEST_TRACE_S + 60, True)])
def test_when_it_is_over(seconds: float, over: bool) -> None:  # noqa: FBT001
    """When its time has come; and when that is farther away than anybody may ask for."""
    ask = TraceRequest((), b"k", time.monotonic_ns() + int(1e9 * seconds), 1000, payload=False)
    assert ask.is_over() == over
