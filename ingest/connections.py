"""Connections counted by input, in the shared page: how many came, and how each of them ended.

    connections := row[2], of the UNIX streams and of TCP
    row         := accepted:i64 closed:i64[CLOSINGS] errors:i64

A connection counts as accepted when its line is opened, and as closed when that is free again, which is when
all that it sent is in the log: by what its last run says, so that a successor counts what a killed worker did
not. They begin anew with the page. A SIGKILL between two stores can leave one counted twice; the successor
makes the sum right (`settle`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ingest.line import REASON, TCP, UNIX, free_line, is_ended, kind_of, open_line, run_at
from spool.kernel import address_of, kernel, load_i64, load_u32, store_i64
from spool.wire import Reason, reason_name

_REASONS = (
    *(Reason.UNCLEAN, Reason.BAD_SIZE, Reason.TOO_LONG, Reason.TLS, Reason.HTTP),
    *(Reason.USER_LIMIT, Reason.TOO_SLOW),
)
CLOSINGS = ("clean", *map(reason_name, _REASONS))
"""How a connection ends: between two messages, inside one (unclean), or by us."""
_CODES = tuple(int(reason) for reason in _REASONS)
_ERRORS = 1 + len(CLOSINGS)
_ROW = 2 + len(CLOSINGS)
CONNECTION_WORDS = 2 * _ROW


class Connections(NamedTuple):
    """Those of one input, since the page was made."""

    accepted: int
    closed: dict[str, int]
    """By CLOSINGS."""
    errors: int
    """Of those that were closed: failed, as by a reset, instead of being ended."""


@kernel
def _row_of(counts: int, kind: int) -> int:
    return counts + (kind - UNIX) * 8 * _ROW


@kernel
def _count(at: int) -> None:
    store_i64(at, load_i64(at) + 1)


@kernel
def open_counted(counts: int, head: int, kind: int, uid: int, pid: int, gid: int) -> None:
    """Make a free line that of a new connection, and count it."""
    _count(_row_of(counts, kind))
    open_line(head, kind, uid, pid, gid)


@kernel
def free_counted(counts: int, head: int) -> None:
    """The connection of a line is over, and all that it sent is taken: count how it ended."""
    number = 1
    if is_ended(head):
        reason = load_u32(run_at(head) + REASON)
        for i in range(len(_CODES)):
            if _CODES[i] == reason:
                number = 2 + i
    _count(_row_of(counts, kind_of(head)) + 8 * number)
    free_line(head)


@kernel
def count_error(counts: int, head: int) -> None:
    """The connection of a line has failed."""
    _count(_row_of(counts, kind_of(head)) + 8 * _ERRORS)


def settle(words: npt.NDArray[np.int64], heads: Sequence[int]) -> None:
    """Count as accepted what is closed, or has one of these lines; `words` int64[CONNECTION_WORDS]."""
    kinds = [kind_of(head) for head in heads]
    for row, kind in zip(words[:CONNECTION_WORDS].reshape(2, _ROW), (UNIX, TCP), strict=True):
        row[0] = row[1:_ERRORS].sum() + kinds.count(kind)


def read_connections(words: npt.NDArray[np.int64]) -> dict[str, Connections]:
    """By input, of CONNECTION_WORDS words of a copied page."""
    found = {}
    for name, row in zip(("stream", "tcp"), words[:CONNECTION_WORDS].reshape(2, _ROW).tolist(), strict=True):
        closed = dict(zip(CLOSINGS, row[1:_ERRORS], strict=True))
        found[name] = Connections(row[0], closed, row[_ERRORS])
    return found


def compile_kernels() -> None:
    """Compile, or load from the cache."""
    head, counts = np.zeros(32, np.int64), np.zeros(CONNECTION_WORDS, np.int64)
    at, line = address_of(counts), address_of(head)
    open_counted(at, line, UNIX, 0, 0, 0)
    count_error(at, line)
    free_counted(at, line)
