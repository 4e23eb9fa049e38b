"""The errors of commands, and the exit code in which each error ends: decided here alone.

    CliError
      ConfigError       a table, key or value of bruce.toml or of the environment
      BadArgument       arguments that parse, but say nothing that can be done
      NotFound          a message or file that is not there, or cannot be read
      NobodyListens     no daemon behind the socket

Each message is one sentence for the terminal. Exit codes:

    0   fine
    1   found something wrong
    2   bad usage or configuration
    3   not reachable
    4   began, and could not be finished
    70  a defect, whose traceback is shown

As shells count signals, 130 follows Control-C, and 141 follows SIGPIPE.
"""

from __future__ import annotations

import signal

from dispatch.errors import BadProperty, DispatchError, NoLibrary, Unreachable
from ingest.errors import BadAccessRule, BadSocket, IngestError, NoAccounts
from pipeline.errors import (
    BadOption,
    BadQuery,
    JobFailed,
    MissingEngine,
    MissingSpark,
    NotLent,
    NoWitness,
    PipelineError,
)
from router import BadPartitioner, RouterError
from spool.errors import MissingPart, NoSpool, SpoolError
from status.access import BadAccess, StatusError

FINE = 0
FOUND = 1
USAGE = 2
UNREACHABLE = 3
UNFINISHED = 4
DEFECT = 70
"""As sysexits(3) has it: a shell that asks for 1, something found, does not take it for that."""
INTERRUPTED = 128 + signal.SIGINT
NO_READER = 128 + signal.SIGPIPE
"""The output has no reader any more, as shells count it (cli.terminal.program)."""
MEANINGS = {
    FINE: "Fine.",
    FOUND: "Found something wrong.",
    USAGE: "Bad usage or configuration.",
    UNREACHABLE: "Not reachable: no daemon, no spool, no Kafka, or no witness at work.",
    UNFINISHED: "Began, and could not be finished: what was found by then counts for nothing.",
    DEFECT: "A defect of bruce: please report the traceback.",
    INTERRUPTED: "Interrupted by Control-C. Commands that go on until then end with 0.",
    NO_READER: "Ended by SIGPIPE, as others are: what reads its output (head, a pager) has seen enough.",
}


class CliError(Exception):
    """Anything that a command refuses by itself."""


class ConfigError(CliError):
    """A setting that cannot be used. `where` names the file or the environment variable."""

    def __init__(self, where: str, reason: str) -> None:
        self.where = where if where.isprintable() else ascii(where)
        super().__init__(f"{self.where}: {reason}")


class BadArgument(CliError):
    """Arguments that parse, but say nothing that can be done."""


class NotCompiled(CliError):
    """The compiled loops of this host could not be made, or kept."""


class NotFound(CliError):
    """The message or file that was asked for is not there, or cannot be read."""


class NobodyListens(CliError):
    """No daemon behind the socket. `sent` messages had been taken before."""

    def __init__(self, reason: str, sent: int = 0) -> None:
        super().__init__(reason)
        self.sent = sent


KNOWN = (CliError, SpoolError, IngestError, DispatchError, RouterError, PipelineError, StatusError)
"""The roots of the trees of errors: what is none of these is a DEFECT, and keeps its traceback."""

_CODES: dict[type[BaseException], int] = {
    CliError: FOUND,
    ConfigError: USAGE,
    BadArgument: USAGE,
    NotCompiled: UNFINISHED,
    NobodyListens: UNREACHABLE,
    SpoolError: FOUND,
    MissingPart: USAGE,
    NoSpool: UNREACHABLE,
    IngestError: FOUND,
    BadSocket: USAGE,
    BadAccessRule: USAGE,
    NoAccounts: UNREACHABLE,
    RouterError: FOUND,
    BadPartitioner: USAGE,
    DispatchError: FOUND,
    NoLibrary: USAGE,
    BadProperty: USAGE,
    Unreachable: UNREACHABLE,
    StatusError: FOUND,
    BadAccess: USAGE,
    PipelineError: FOUND,
    MissingEngine: USAGE,
    MissingSpark: USAGE,
    BadOption: USAGE,
    NotLent: UNREACHABLE,
    NoWitness: UNREACHABLE,
    BadQuery: USAGE,
    JobFailed: UNFINISHED,
}


def exit_code(error: BaseException) -> int:
    """The code of the nearest class above this error that has one; DEFECT for a stranger."""
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), DEFECT)
