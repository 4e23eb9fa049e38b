"""The headers that a record has beside its sender's."""

from __future__ import annotations

from spool.format.message_hash import REPLAY_NAME

__all__ = ["HEADER_BYTES", "HEADER_NAME", "REPLAY_NAME"]

HEADER_NAME = b"bruce-id"
HEADER_BYTES = 24
"""Spool uuid, 16 bytes; sequence, 8 bytes, big-endian."""
