"""Where the daemon's log goes, and in what form."""

from __future__ import annotations

from dataclasses import dataclass

AUTO, TEXT, JSON = "auto", "text", "json"
FORMATS = (AUTO, TEXT, JSON)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The daemon's log. The `[log]` table of bruce.toml."""

    format: str = AUTO
    """`auto`: to the journal where standard error leads there, as under systemd, with fields of its own; else
    as `text`, a line for people on standard error. `json`: an object a line on standard error, for programs.
    bruce-json(5) has keys and fields. Of one cause at most 20 lines a minute are written, and how many were
    left out is said. No line has a message's key or value."""
