"""`brucectl inspect`: what is in a spool, or in segment files by themselves. Nothing is ever written."""

from __future__ import annotations

from cli.commands.inspect import carve, export, find, frames, records, segments, show, timeline, verify

HELP = "Look into a spool, or segment files by themselves. Nothing is written."

__all__ = ["HELP", "carve", "export", "find", "frames", "records", "segments", "show", "timeline", "verify"]
