"""Doing something as another user of this host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

NOBODY = 65534


def as_user(uid: int, work: Callable[[], object], groups: list[int] | None = None) -> int:
    """Do this as the user `uid`, in a process of its own, which has no right left.

    The exit code: 0 when it came to its end, 1 behind an OSError, else 2.
    """
    if os.geteuid():
        pytest.skip("becoming another user needs root")
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 2
    try:
        os.setgroups(groups or [])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        work()
        code = 0
    except OSError:
        code = 1
    finally:
        os._exit(code)


@contextmanager
def effective_user(uid: int) -> Iterator[None]:
    """Sockets and files that this process makes meanwhile belong to this user."""
    if os.geteuid():
        pytest.skip("becoming another user needs root")
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
