"""The errors of a spool: one tree, one sentence each, and those that are errors of the system, too."""

from __future__ import annotations

import errno
import os

import pytest

from spool import errors
from spool.errors import BadSpool, NotAFile, ReadFailed, SpoolError, SpoolFull
from spool.options import Full
from tests.error_trees import drawn_tree, real_tree, unsaid


def test_the_docstring_draws_the_tree() -> None:
    """Each class is in it, under its base, and all are below SpoolError: one `except` is enough."""
    assert drawn_tree(errors) == real_tree(errors)
    kinds = [getattr(errors, name) for name in real_tree(errors)]
    assert all(issubclass(kind, SpoolError) for kind in kinds)


def test_each_is_raised_with_a_sentence() -> None:
    """No place in the code raises one without words, with several lines, or with a full stop."""
    assert unsaid(errors) == []


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            ReadFailed(errno.EIO, os.strerror(errno.EIO), "/x"),
            "/x cannot be read: Input/output error; see to the disk",
        ),
        (NotAFile(errno.EINVAL, "a pipe", "/x"), "/x is a pipe and no regular file: move it away"),
    ],
    ids=["ReadFailed", "NotAFile"],
)
def test_it_is_an_error_of_both_kinds(error: BadSpool, sentence: str) -> None:
    """Code that handles a bad spool, or an error of the system, handles this error; it says what to do."""
    assert isinstance(error, OSError)
    assert isinstance(error, BadSpool)
    assert (error.errno, error.filename, str(error)) == (error.args[0], "/x", sentence)


def test_a_full_spool_says_which_limit() -> None:
    """The reason for the keeper is beside the sentence for people; without one it is the disk."""
    assert SpoolFull("no room").why is Full.DISK
    error = SpoolFull("no room", why=Full.RESERVE)
    assert (error.why, str(error)) == (Full.RESERVE, "no room")
