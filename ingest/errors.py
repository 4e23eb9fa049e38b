"""What can go wrong at intake.

    IngestError
      BadSocket       the socket cannot be made, or what was handed over is no such socket
      BadStaging      the staging memory cannot be made or is not ours

Each message is one sentence that says what, where and what to do.
"""

from __future__ import annotations


class IngestError(Exception):
    """Anything the intake refuses or cannot do."""


class BadSocket(IngestError):
    """The socket cannot be made, or what was handed over is no such socket."""


class BadStaging(IngestError):
    """The staging memory cannot be made or is not ours."""
