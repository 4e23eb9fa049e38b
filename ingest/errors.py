"""What can go wrong at intake.

    IngestError
      BadSocket       the socket cannot be made, or what was handed over is no such socket
      BadAccessRule   a rule of [access] names somebody whom this host does not know
      BadStaging      the staging memory cannot be made or is not ours

Each message is one sentence that says what, where and what to do.
"""

from __future__ import annotations


class IngestError(Exception):
    """Anything the intake refuses or cannot do."""


class BadSocket(IngestError):
    """The socket cannot be made, or what was handed over is no such socket."""


class BadAccessRule(IngestError):
    """A rule of [access] names somebody whom this host does not know."""

    def __init__(self, pattern: str, reason: str) -> None:
        super().__init__(f'[access] "{pattern}": {reason}')


class BadStaging(IngestError):
    """The staging memory cannot be made or is not ours."""
