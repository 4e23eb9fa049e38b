"""The names are those that the world knows: programs that read our records look for them."""

from __future__ import annotations

from dispatch.header_names import HEADER_BYTES, HEADER_NAME, REPLAY_NAME


def test_names() -> None:
    """They are in docs/clients.md and in other people's consumers."""
    assert (HEADER_NAME, HEADER_BYTES, REPLAY_NAME) == (b"bruce-id", 16 + 8, b"bruce-replay")
