"""Errors of the intake.

    IngestError
      BadSocket       the socket cannot be made, or what was handed over is no such socket
      BadAccessRule   a rule of [access] names an account that this host does not know
      NoAccounts      the host does not tell its users and groups
      BadStaging      the staging memory cannot be made or is not ours
      NoDescriptors   the host, or its limits, have no room for one more connection

Each message is one sentence that says what, where and what to do.
"""

from __future__ import annotations


class IngestError(Exception):
    """Anything the intake refuses or cannot do."""


class BadSocket(IngestError):
    """The socket cannot be made, or what was handed over is no such socket."""


class BadAccessRule(IngestError):
    """A rule of [access] names an account that this host does not know."""

    def __init__(self, pattern: str, reason: str) -> None:
        super().__init__(f'[access] "{pattern}": {reason}')


class NoAccounts(IngestError):
    """The host does not tell its users and groups."""

    def __init__(self, within_s: float) -> None:
        super().__init__(
            f"this host did not answer within {within_s:.0f} s which users and groups it has: see the "
            "sources in /etc/nsswitch.conf, or write uid:NUMBER in [access]"
        )


class BadStaging(IngestError):
    """The staging memory cannot be made or is not ours."""


class NoDescriptors(IngestError):
    """The host, or its limits, have no room for one more connection."""
