"""Dying before every single system call: reopening finds everything that was stored."""

from __future__ import annotations

import contextlib
import gc
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from spool.format.sums_book import decode_departed
from spool.shared.state import Field
from tests.spool.fixture import SpoolFixture

CALLS = ("rename", "fsync", "fdatasync", "posix_fallocate", "pwrite", "ftruncate", "unlink", "mkdir", "open")

each_call = pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
"""All calls in a complete run, otherwise each fourth one of its kind."""


class Crash(BaseException):
    """This process is dead."""


class Countdown:
    """Dies before the call with a given number; `names` are the calls so far."""

    def __init__(self, at: int) -> None:
        self.at, self.names = at, list[str]()

    def wrap(self, name: str) -> Callable[..., object]:
        """The system call `name`, counted."""
        real = getattr(os, name)

        def call(*arguments: object, **named: object) -> object:
            self.names.append(name)
            if len(self.names) - 1 == self.at:
                raise Crash(name)
            return real(*arguments, **named)

        return call

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Count the calls inside the block."""
        with contextlib.ExitStack() as stack:
            for name in CALLS:
                stack.enter_context(mock.patch.object(os, name, self.wrap(name)))
            with contextlib.suppress(Crash):
                yield


def roll_and_seal(spool: SpoolFixture, sent: list[bytes]) -> None:
    """Rolling, naming, committing, sealing, retiring, making room, stopping and starting."""
    for _ in range(6):
        spool.step()
        for _ in range(7):
            sent += spool.fill(1, messages=6)
        spool.shared.words[Field.LOW_WATERMARK] = len(sent) // 2
    spool.step()
    spool.stop()
    spool.open()
    sent += spool.fill(3)
    spool.step()


def check(spool: SpoolFixture, sent: list[bytes], kept: int) -> None:
    """Everything from `kept` on is there; before it, only delivered messages may be gone.

    The book of sums has those that are.
    """
    found = spool.records()
    expected = list(enumerate(sent))
    assert found == expected[len(expected) - len(found) :]
    assert len(expected) - len(found) <= kept
    book = spool.layout.sums.read_bytes() if spool.layout.sums.exists() else b""
    noted = {
        one.first + at for one in decode_departed(spool.identity.spool, book) for at in range(one.messages)
    }
    assert noted >= set(range(len(expected) - len(found)))


def killed_runs(directory: Path, step: int) -> Iterator[tuple[SpoolFixture, list[bytes], int]]:
    """A life for each `step`-th call of each kind: (spool, messages sent, number of the call it ended at)."""
    spool, whole = new_spool(directory / "whole"), Countdown(-1)
    with whole.armed():
        roll_and_seal(spool, [])
    spool.crash()
    assert len(whole.names) > 50
    for at, name in enumerate(whole.names):
        if whole.names[:at].count(name) % step == 0:
            spool, sent, countdown = new_spool(directory / str(at)), list[bytes](), Countdown(at)
            with countdown.armed():
                roll_and_seal(spool, sent)
            yield spool, sent, at


def new_spool(directory: Path) -> SpoolFixture:
    """A spool with room for five segments."""
    return SpoolFixture(directory, max_bytes=5 * 8192)


@each_call
def test_a_crash_at_any_call_loses_nothing(memory: Path, step: int) -> None:
    """At each call of a life of rolls and seals: reopened in the same boot, all is there, and it goes on."""
    for spool, sent, _ in killed_runs(memory, step):
        low_watermark = int(spool.shared.words[Field.LOW_WATERMARK])
        spool.crash()
        gc.collect()
        spool.open()
        check(spool, sent, low_watermark)
        both = sent + spool.fill(2)
        spool.step()
        check(spool, both, low_watermark)
        assert spool.synced == len(both)
        spool.crash()


@each_call
def test_a_power_loss_at_any_call_loses_nothing_that_was_synced(memory: Path, step: int) -> None:
    """The same, with unsynced sectors lost: all messages announced as synced are there."""
    for spool, sent, at in killed_runs(memory, step):
        low_watermark, synced = int(spool.shared.words[Field.LOW_WATERMARK]), spool.synced
        spool.lose_power(random.Random(at))
        gc.collect()
        spool.open()
        found = set(spool.records())
        assert found <= set(enumerate(sent))
        assert {r for r in enumerate(sent) if low_watermark <= r[0] < synced} <= found
        spool.crash()


@each_call
def test_crashing_again_while_opening(memory: Path, step: int) -> None:
    """A crash at each call of opening after a power loss, and then again: nothing synced is lost."""
    for at in range(0, 200, step):
        spool = SpoolFixture(memory / str(at))
        sent = spool.fill(30)
        spool.step()
        spool.fill(2)
        spool.lose_power(random.Random(at))
        countdown = Countdown(at)
        with countdown.armed():
            spool.open()
        spool.crash()
        gc.collect()
        spool.open()
        assert spool.records()[: len(sent)] == list(enumerate(sent))
        spool.crash()
        if len(countdown.names) <= at:
            return
    pytest.fail("opening makes more calls than were tried")
