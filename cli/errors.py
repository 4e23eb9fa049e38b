"""What can go wrong before a command reaches the parts of bruce.

    CliError
      ConfigError       a table, key or value of bruce.toml or of the environment
      BadArgument       arguments that parse, but say nothing that can be done
      NotFound          what was asked for is not there, or cannot be read
      NobodyListens     no daemon behind the socket

Each message is one sentence for the terminal; `cli.exits` says which exit code goes with it.
"""

from __future__ import annotations


class CliError(Exception):
    """Anything that a command refuses by itself."""


class ConfigError(CliError):
    """A setting that cannot be used. `where` names the file or the environment variable."""

    def __init__(self, where: str, reason: str) -> None:
        self.where = where if where.isprintable() else ascii(where)
        super().__init__(f"{self.where}: {reason}")


class BadArgument(CliError):
    """Arguments that parse, but say nothing that can be done."""


class NotFound(CliError):
    """What was asked for is not there, or cannot be read."""


class NobodyListens(CliError):
    """No daemon behind the socket. `sent` messages had been taken before."""

    def __init__(self, reason: str, sent: int = 0) -> None:
        super().__init__(reason)
        self.sent = sent
