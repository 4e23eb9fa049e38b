"""Options and arguments that the commands share."""

from __future__ import annotations

import errno
import os

import pytest

from cli.commands.arguments import file_errors
from cli.terminal.errors import BadArgument
from spool.errors import ReadFailed


@pytest.mark.parametrize(
    ("code", "words"), [(errno.EACCES, "read"), (errno.EROFS, "written"), (errno.ENOSPC, "written")]
)
def test_what_the_file_system_refuses(code: int, words: str) -> None:
    """One sentence says which file, and whether it was to be read or written."""
    with pytest.raises(BadArgument, match=f"^lock cannot be {words}: {os.strerror(code)}$"), file_errors():
        raise OSError(code, os.strerror(code), "lock")


def test_a_disk_that_fails_is_no_wrong_argument() -> None:
    """The error keeps its own sentence and exit code."""
    with pytest.raises(ReadFailed), file_errors():
        raise ReadFailed(errno.EIO, os.strerror(errno.EIO), "segment")
