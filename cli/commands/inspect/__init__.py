"""`brucectl inspect`: what is in a spool, or in segment files by themselves. Nothing is ever written."""

from __future__ import annotations

from cli.commands.inspect import find, records, segments, show, verify

HELP = "Look into a spool, or segment files by themselves. Nothing is written."

__all__ = ["HELP", "find", "records", "segments", "show", "verify"]
