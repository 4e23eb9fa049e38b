"""`brucectl spark`: jobs over whole spools. One module a command; `options` has what they share."""

from __future__ import annotations

from cli.commands.spark import archive, audit, drain, query, replay, run, stats

HELP = "Run a job over whole spools, on Spark."

__all__ = ["HELP", "archive", "audit", "drain", "query", "replay", "run", "stats"]
