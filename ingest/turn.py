"""Whose turn it is to receive: the words that the worker and its guard share. In memory of their process.

    0    state     RECEIVING: the worker has the socket; STORING: it has it, and stores a burst;
                   GUARDED: the guard has it
    8    beat      counts bursts, so that a store which lasts can be told from many short ones
    16   done      banks of the reserve that the worker has stored; -1 while it stores the burst before them
    24   closed    banks of the reserve that the guard has received into and left to the worker
    32   leave     1: the guard is to end
    40   hold      1: nobody is to receive; senders wait until there is room
    48   faults    datagrams that were lost for want of memory (ingest.faults); counted by who has the socket

From STORING either side goes on by one exchange, the worker to RECEIVING, the guard to GUARDED. From there
only the guard leads back.
"""

from __future__ import annotations

import numpy as np

from ingest.bank import load_word, store_word
from spool.kernel import address_of, exchange, kernel

STATE, BEAT, DONE, CLOSED, LEAVE, HOLD, FAULTS = 0, 8, 16, 24, 32, 40, 48
RECEIVING, STORING, GUARDED = range(3)


class Turn:
    """The words. `address` is for kernels."""

    def __init__(self) -> None:
        self._words = np.zeros(8, np.int64)
        self.address = address_of(self._words)

    def begin_storing(self) -> None:
        """The worker has something to store; the socket is its own."""
        self.publish(BEAT, self.load(BEAT) + 1)
        self.publish(STATE, STORING)

    def finish_storing(self) -> bool:
        """The worker's burst is stored; whether the socket is still its own."""
        return bool(finish_storing(self.address))

    def load(self, word: int) -> int:
        """One of the words."""
        return int(load_word(self.address + word))

    def publish(self, word: int, value: int) -> None:
        """Change one of the words, after all stores before."""
        store_word(self.address + word, value)


@kernel
def finish_storing(turn: int) -> bool:
    """From STORING back to RECEIVING, if nobody took over."""
    return exchange(turn, STORING, RECEIVING)


def compile_kernels() -> None:
    """Compile, or load from the cache."""
    turn = Turn()
    turn.publish(STATE, turn.load(STATE))
    turn.finish_storing()
