"""Exit codes: every error of ours has one, any other error keeps its traceback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dispatch.errors
import ingest.errors
import spool.errors
from cli.terminal import errors
from cli.terminal.errors import BadArgument, ConfigError, NobodyListens


def classes_below(root: type[Exception]) -> Iterator[type[Exception]]:
    """All its subclasses."""
    yield root
    for child in root.__subclasses__():
        yield from classes_below(child)


@pytest.mark.parametrize("kind", [kind for root in errors.KNOWN for kind in classes_below(root)])
def test_every_error_has_a_code(kind: type[Exception]) -> None:
    """No error of ours ends in 0, or in a code that the man page does not explain."""
    code = errors.exit_code(kind.__new__(kind))
    assert code != errors.FINE
    assert code in errors.MEANINGS


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("bruce.toml", "wrong"), 2),
        (BadArgument("wrong"), 2),
        (NobodyListens("gone", 0), 3),
        (spool.errors.SpoolFull(), 1),
        (spool.errors.SpoolBusy(), 1),
        (spool.errors.NoSpool(), 3),
        (spool.errors.MissingPart(), 2),
        (ingest.errors.BadSocket(), 2),
        (dispatch.errors.BadProperty("key", "reason"), 2),
        (dispatch.errors.Unreachable(-195, "reason"), 3),
    ],
)
def test_codes(error: Exception, code: int) -> None:
    """1 found something wrong, 2 bad usage or configuration, 3 not reachable."""
    assert errors.exit_code(error) == code
