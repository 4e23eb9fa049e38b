"""The errors of a spool.

    SpoolError
      MissingPart        a library or a kernel feature is not there
      SpoolBusy          another process owns the directory
      NoSpool            the directory holds no spool
      SpoolFull          the size limit or the free-space reserve is reached, or the disk
      SyncFailed         the disk did not take what was written
      MarksFailed        what was delivered could not be written down
      SegmentsGone       what is being read was removed to make room
      BadSpool           the files cannot be trusted
        UnknownVersion   written by a newer release
        ReadFailed       the disk gives an error for bytes of a file; an OSError, too
        NotAFile         a pipe, a link, a directory where a file should be; an OSError, too
      NotOurs            a directory or a file that another user could have planted

Each message is one sentence that says what, where and what to do; `cli.terminal.errors` maps the tree to exit
codes.
"""

from __future__ import annotations

from spool.options import Full


class SpoolError(Exception):
    """Anything a spool refuses or cannot do."""


class MissingPart(SpoolError):
    """A library or a feature of the kernel is not there."""


class SpoolBusy(SpoolError):
    """Another process owns the directory."""


class NoSpool(SpoolError):
    """The directory holds no spool."""


class SpoolFull(SpoolError):
    """No room: `max_bytes` or the free-space reserve is reached, or the disk is full."""

    def __init__(self, *sentence: str, why: Full = Full.DISK) -> None:
        super().__init__(*sentence)
        self.why = why


class SyncFailed(SpoolError):
    """The disk did not take what was written: it is in the segments, and nowhere reported as synced."""


class MarksFailed(SpoolError):
    """The marks could not be written; nothing is lost, but messages may be sent again."""


class SegmentsGone(SpoolError):
    """Segments that are being read were removed, delivered as they were, to make room."""


class BadSpool(SpoolError):
    """The files cannot be trusted."""


class UnknownVersion(BadSpool):
    """Written by a newer release."""


class ReadFailed(BadSpool, OSError):
    """The disk gives an error for bytes of a file. Nothing is known of them; a later read may succeed.

    Made like an OSError: number, text, path.
    """

    def __str__(self) -> str:
        return f"{self.filename} cannot be read: {self.strerror}; see to the disk"


class NotAFile(BadSpool, OSError):
    """A path that should be a regular file is none. Made like an OSError: number, what it is, path."""

    def __str__(self) -> str:
        return f"{self.filename} is {self.strerror} and no regular file: move it away"


class NotOurs(SpoolError):
    """A directory or a file belongs to another user, or others may write to it: nothing in it is believed."""
