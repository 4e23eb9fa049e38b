"""`brucectl spark`: jobs over whole spools. One module a command; `options` has what they share."""

from __future__ import annotations

HELP = "Run a job over whole spools, on Spark."
