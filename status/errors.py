"""What can go wrong before a status page can be served.

    StatusError
      BadAccess       the token file, the certificate or the key cannot be used
      NothingToTell   the spool cannot be looked at now

Each message is one sentence for the terminal; `cli.exits` says which exit code goes with it.
"""

from __future__ import annotations


class StatusError(Exception):
    """Anything that the status page refuses by itself."""


class BadAccess(StatusError):
    """A token file, a certificate or a key that cannot be used. `key` is that of [status] which names it."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"[status] {key} {reason}")
        self.key = key


class NothingToTell(StatusError):
    """The spool cannot be looked at now; the sentence says why."""
