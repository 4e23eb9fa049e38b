"""Exit codes, and which error ends in which. Nobody else decides about them.

0   fine
1   found something wrong
2   bad usage or configuration
3   not reachable

And, as shells count signals, 130 behind Control-C, and 141 where SIGPIPE ended it.
"""

from __future__ import annotations

import signal

from cli.errors import BadArgument, CliError, ConfigError, NobodyListens
from dispatch.errors import BadProperty, DispatchError, EmbeddedFailed, NoLibrary, Unreachable
from ingest.errors import BadAccessRule, BadSocket, IngestError, NoAccounts
from pipeline.errors import BadOption, BadQuery, MissingSpark, NotLent, PipelineError
from router.errors import BadPartitioner, RouterError
from spool.errors import MissingPart, NoSpool, SpoolBusy, SpoolError
from status.errors import BadAccess, StatusError

FINE = 0
FOUND = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 128 + signal.SIGINT
NO_READER = 128 + signal.SIGPIPE
"""As shells count it: nobody reads the output any more (cli.entry)."""

MEANINGS = {
    FINE: "Fine.",
    FOUND: "Found something wrong.",
    USAGE: "Bad usage or configuration.",
    UNREACHABLE: "Not reachable: no daemon, no spool, or no Kafka.",
    INTERRUPTED: "Interrupted by Control-C. Commands that go on until then end with 0.",
    NO_READER: "Ended by SIGPIPE, as others are: what reads its output (head, a pager) has seen enough.",
}

KNOWN = (CliError, SpoolError, IngestError, DispatchError, RouterError, PipelineError, StatusError)
"""The roots of the trees of errors: what is none of these is a defect, and keeps its traceback."""

_CODES: dict[type[BaseException], int] = {
    CliError: FOUND,
    ConfigError: USAGE,
    BadArgument: USAGE,
    NobodyListens: UNREACHABLE,
    SpoolError: FOUND,
    MissingPart: USAGE,
    SpoolBusy: UNREACHABLE,
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
    EmbeddedFailed: UNREACHABLE,
    StatusError: FOUND,
    BadAccess: USAGE,
    PipelineError: FOUND,
    MissingSpark: UNREACHABLE,
    BadOption: USAGE,
    NotLent: UNREACHABLE,
    BadQuery: USAGE,
}


def exit_code(error: BaseException) -> int:
    """The code of the nearest class above this error that has one; FOUND for a stranger."""
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), FOUND)
