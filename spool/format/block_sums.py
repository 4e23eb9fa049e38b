"""Sums of blocks: one number for the messages of a block of 4,096 sequences, in whatever order they come.

A block has the sequences from BLOCK * n on. Its sums are those of the words of its messages
(`spool.format.message_hash`), modulo 2^64, and of the time words, modulo 2^32. Sums of parts of a block can
be added up. A reader that has seen the same messages in Kafka has the same sums.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spool.format.frame import FRAME_COUNT
from spool.format.message_hash import Words, hash_frames
from spool.format.scan import Chunk
from spool.format.segment_format import SUM, SUM_BITS, Record
from spool.native.digest import xxh64_function
from spool.native.memory import address_of

Sequences = npt.NDArray[np.int64]
NO_SEQUENCES: Sequences = np.empty(0, np.int64)
Blocks = npt.NDArray[np.int64]
"""int64[n]: numbers of blocks."""


def sum_blocks(sequences: Words, words: Words, time_words: Words) -> tuple[Blocks, Record]:
    """(numbers of blocks, SUM[blocks]) of messages in any order, none of them twice. All int64[messages]."""
    blocks = sequences >> SUM_BITS
    if len(blocks) > 1 and np.any(np.diff(blocks) < 0):
        order = np.argsort(blocks, kind="stable")
        blocks, words, time_words = blocks[order], words[order], time_words[order]
    starts = np.flatnonzero(np.diff(blocks, prepend=-1))
    sums = np.zeros(len(starts), SUM)
    if len(starts):
        sums["content"] = np.add.reduceat(words.view(np.uint64), starts)
        sums["times"] = np.add.reduceat(time_words.view(np.uint64), starts) & 0xFFFFFFFF
        sums["count"] = np.diff(starts, append=len(blocks))
    return blocks[starts], sums


def add_sums(to: Record, at: npt.NDArray[np.int64], sums: Record) -> None:
    """Add sums to those at these rows, of which none is there twice."""
    for name in SUM.names or ():
        to[name][at] += sums[name]


class BlockSums:
    """The sums of one segment's messages, gathered chunk by chunk."""

    def __init__(self, without: Sequences = NO_SEQUENCES) -> None:
        """`without`: sequences, ascending, of messages that do not count."""
        self._without = without
        self._parts: list[tuple[Blocks, Record]] = []
        self._word = np.zeros(1, np.int64)

    def add(self, chunk: Chunk) -> None:
        """Take in a run of good frames."""
        sequences, words, time_words = words_of(chunk, self._word)
        if len(self._without):
            counts = ~np.isin(sequences, self._without)
            sequences, words, time_words = sequences[counts], words[counts], time_words[counts]
        self._parts.append(sum_blocks(sequences, words, time_words))

    def rows(self, first_sequence: int) -> Record:
        """SUM[blocks]: of the block of this sequence, and of all up to that of the last message."""
        first = first_sequence >> SUM_BITS
        end = max((int(blocks[-1]) + 1 for blocks, _ in self._parts if len(blocks)), default=first)
        rows = np.zeros(end - first, SUM)
        for blocks, sums in self._parts:
            add_sums(rows, blocks - first, sums)
        return rows


def words_of(chunk: Chunk, word: Words) -> tuple[Words, Words, Words]:
    """(sequences, words, time words) of the messages in a run of good frames. `word` int64[1]: scratch."""
    frames = np.ascontiguousarray(chunk.frames)
    sequences, words, time_words = np.empty((3, int(frames[:, FRAME_COUNT].sum())), np.int64)
    xxh = xxh64_function(), address_of(word)
    count = hash_frames(chunk.base, frames, xxh, sequences, words, time_words)
    return sequences[:count], words[:count], time_words[:count]
