"""The headers that a record has beside its sender's."""

from __future__ import annotations

HEADER_NAME = b"bruce-id"
HEADER_BYTES = 24
"""Spool uuid, 16 bytes; sequence, 8 bytes, big-endian."""
REPLAY_NAME = b"bruce-replay"
"""When the replay was asked for: ms since the epoch, in digits."""
