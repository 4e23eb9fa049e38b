"""Frames with a right digest that bruce never wrote: a copied spool is untrusted, and ends no process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spool.format.batch import Topics, decode
from spool.format.frame import POSITION, ROW, tail_at_start, walk
from spool.format.scan import Chunk, digest_address
from spool.format.segment_format import HEADER_BYTES, decode_header
from spool.format.wire import Reason, encode
from spool.log.intake_totals import UNKNOWN, SenderCount, add_refused, list_refused
from spool.native.memory import address_of
from spool.read.reader import Damage
from tests.ingest.processes import await_end, end_children, fork
from tests.spool.fixture import SpoolFixture
from tests.spool.memory import Chain
from tests.spool.read.test_reader import drain, make_reader
from tests.spool.strategies import datagrams
from tools.fuzzers.sealed import FRAMES, seal_input
from tools.fuzzers.wall import Wall

RIGHT = encode(b"topic", b"value", key=b"key")
EXAMPLES = 400
bursts = st.tuples(
    st.lists(datagrams | st.binary(max_size=60), max_size=4),
    st.dictionaries(
        st.sampled_from([1, int(Reason.OVER_QUOTA)]), st.tuples(st.integers(0, 9), st.binary(max_size=60))
    ),
)
"""Bytes that a forger may put into a frame in place of datagrams and discards."""


@pytest.fixture(autouse=True)
def _childless() -> Iterator[None]:
    yield
    end_children()


def look(data: bytes, wall: Wall) -> None:
    """Process frames like daemon and brucectl, in memory behind which any access faults."""
    memory, table = wall.place(data), np.zeros((64, ROW), np.int64)
    tail = tail_at_start(decode_header(data[:HEADER_BYTES], "forged"))
    _, rows = walk(address_of(memory), len(memory), tail, table, digest_address())
    frames = table[:rows]
    batch = decode(memory, 0, frames, Topics(), digest_address())
    for row in range(len(batch)):
        end = int(batch.datagram_at[row]) + int(batch.datagram_bytes[row])
        assert int(batch.value_at[row]) + int(batch.value_bytes[row]) <= end <= len(memory)
        assert sum(6 + len(name.encode()) + len(value or b"") for name, value in batch.headers(row)) == (
            end - int(batch.value_at[row]) - int(batch.value_bytes[row])
        )
        assert 0 <= int(batch.key_at[row]) <= int(batch.key_at[row]) + int(batch.key_bytes[row]) < end
    count = SenderCount(0, b"")
    count.add(Chunk(memory, 0, frames))
    found = np.zeros((list_refused(address_of(memory), frames, 0, np.zeros((0, 7), np.int64)), 7), np.int64)
    list_refused(address_of(memory), frames, 0, found)
    assert all(at >= 0 and at + length <= len(memory) for at, length in found[:, 4:6].tolist())
    assert all(uid <= UNKNOWN for uid in found[:, 6].tolist())
    add_refused(address_of(count.slot), address_of(memory), found, digest_address())


def in_a_child(run: Callable[[], object]) -> int:
    """The exit status of a child process that runs it."""
    return await_end(fork(run))


def test_whatever_a_frame_holds() -> None:
    """Any datagrams and discards, with any bytes changed, each digest right: no process crashes."""
    wall = Wall(1 << 16)

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(st.lists(bursts, min_size=1, max_size=3), st.randoms(use_true_random=False), st.integers(0, 12))
    def forge(given_bursts: list, chance: random.Random, changes: int) -> None:
        chain = Chain()
        for held, refused in given_bursts:
            chain.append(held, refused, (1, 2))
        data = bytearray(chain.memory[: int(chain.tail[POSITION])].tobytes())
        for _ in range(changes):
            at = chance.randrange(HEADER_BYTES, len(data))
            data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        look(seal_input(bytes([FRAMES]) + bytes(data)), wall)

    assert in_a_child(forge) == 0


LIES = {
    "a topic that is longer": RIGHT[:10] + b"\x7f\xff" + RIGHT[12:],
    "a topic of less than nothing": RIGHT[:10] + b"\xff\xff" + RIGHT[12:],
    "a key that is longer": RIGHT[:25] + b"\x7f\xff\xff\xf0" + RIGHT[29:],
    "a value that is longer": RIGHT[:-9] + b"\x7f\xff\xff\xf0" + RIGHT[-5:],
    "another kind": RIGHT[:5] + b"\xff" + RIGHT[6:],
    "nothing": b"",
    "a few bytes": b"\0" * 28,
}


@pytest.mark.parametrize("lie", LIES)
def test_it_is_damaged(spool: SpoolFixture, lie: str) -> None:
    """The frames around it are read, and every reader names its messages as damaged."""
    good = [encode(b"t", b"%d" % number, timestamp=number) for number in range(4)]
    for held in ([good[0]], [good[1], LIES[lie], good[1]], [good[2]], [LIES[lie]], [good[3]]):
        spool.append(held)
    spool.step()
    reader = make_reader(spool)

    def read() -> None:
        found = drain(reader)
        assert [data for _, data in found] == [good[0], good[2], good[3]]
        first = found[0][0]
        assert reader.take_damage() == [Damage(first + 1, first + 4), Damage(first + 5, first + 6)]
        reader.seek(first + 2)
        assert [data for _, data in drain(reader)] == [good[2], good[3]]
        assert reader.take_damage() == [Damage(first + 2, first + 4), Damage(first + 5, first + 6)]

    assert in_a_child(read) == 0
