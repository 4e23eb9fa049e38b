"""Stored bytes to columns: every message equals the independent parser's."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spool.format.batch import Batch, Topics, decode
from spool.format.frame import ROW, tail_at_start, walk
from spool.format.scan import digest_address
from spool.format.segment_format import decode_header
from spool.format.wire import encode
from spool.native.digest import digest
from spool.native.memory import address_of
from spool.read.files import Span
from tests.spool import plain
from tests.spool.memory import Chain
from tests.spool.strategies import datagrams

refused = st.dictionaries(st.integers(1, 13), st.tuples(st.integers(1, 9), st.binary(max_size=9)), max_size=2)
bursts = st.lists(
    st.tuples(st.lists(datagrams, max_size=5), refused, st.tuples(st.integers(0, 99), st.integers(0, 99))),
    min_size=1,
    max_size=5,
)


def read_back(chain: Chain, topics: Topics, *, shift: int = 0) -> Batch:
    """The batch of all frames, read from bytes that begin `shift` bytes into the segment."""
    table = np.zeros((64, ROW), np.int64)
    tail = tail_at_start(decode_header(chain.data(), "x"))
    _, rows = walk(address_of(chain.memory), len(chain.memory), tail, table, digest_address())
    return decode(chain.memory[shift:].copy(), shift, table[:rows], topics, digest_address())


@given(bursts, st.integers(0, 384))
def test_columns_are_what_the_independent_parser_reads(given_bursts: list, shift: int) -> None:
    """Every column of every message, at any offset of the first byte."""
    chain, topics = Chain(), Topics()
    for burst in given_bursts:
        chain.append(*burst)
    batch = read_back(chain, topics, shift=shift)
    segment = plain.read_segment(chain.data())
    frames = [(f, i) for f in segment.frames for i in range(len(f.datagrams))]
    assert len(batch) == len(frames)
    for row, (frame, i) in enumerate(frames):
        message = plain.parse_datagram(frame.datagrams[i])
        assert isinstance(message, plain.Message)
        assert batch.datagram(row) == frame.datagrams[i]
        assert topics.names[batch.topic[row]] == message.topic
        assert (batch.key(row), batch.value(row)) == (message.key, message.value)
        assert batch.headers(row) == list(message.headers)
        assert batch.encode(row, message.topic) == frame.datagrams[i]
        texts = [message.key, message.value, *(value for _, value in message.headers)]
        names = sum(6 + len(name.encode()) for name, _ in message.headers)
        assert batch.payload_bytes[row] == sum(len(text or b"") for text in texts) + names
        assert batch.timestamp[row] == message.timestamp
        assert (batch.number[row] if batch.keyed[row] else None) == message.partition_key
        assert (batch.number[row] if batch.numbered[row] else None) == message.partition
        assert batch.sequence[row] == frame.sequence + i
        assert batch.received_ns[row] == frame.received_ns
        assert (batch.uid[row], batch.pid[row]) == (frame.uids[i], frame.pids[i])


@settings(max_examples=20)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=400))
def test_topics_keep_their_numbers(names: list[int]) -> None:
    """A topic has one number, in the order of first appearance, across batches and a table that grows."""
    topics, seen = Topics(capacity=4), {}
    for half in (names[: len(names) // 2], names[len(names) // 2 :]):
        if not half:
            continue
        chain = Chain()
        chain.append([encode(b"topic-%d" % n, b"") for n in half], {}, (0, 0))
        batch = read_back(chain, topics)
        wanted = [seen.setdefault(n, len(seen)) for n in half]
        assert batch.topic.tolist() == wanted
    assert list(topics.names) == [b"topic-%d" % n for n in seen]


def forged(name: bytes) -> bytes:
    """Another name with the digest that this one has without a seed: 32 bytes are easily solved for.

    The secret and the steps are those of XXH3's specification: the first half is made to count for nothing,
    the second makes up the difference.
    """
    mask, secret = (
        (1 << 64) - 1,
        bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"),
    )
    words = [int.from_bytes(secret[at : at + 8], "little") for at in range(0, 32, 8)]
    left = digest(name)
    left ^= left >> 32
    left = left * pow(0x165667919E3779F9, -1, 1 << 64) & mask
    left ^= left >> 37
    left = left - 32 * 0x9E3779B185EBCA87 & mask
    return b"".join(word.to_bytes(8, "little") for word in (words[0], 0, words[2] ^ 1, words[3] ^ left))


def test_no_name_passes_for_another() -> None:
    """A name made to have another topic's digest is a separate topic: [access] judged it by its own name."""
    name = b"payments"
    assert digest(forged(name)) == digest(name)
    chain, topics = Chain(), Topics()
    chain.append([encode(name, b"1"), encode(forged(name), b"2")], {}, (0, 0))
    assert read_back(chain, topics).topic.tolist() == [0, 1]
    assert topics.add(forged(name)) == 1


def test_a_batch_can_lose_its_first_rows() -> None:
    """after() drops rows from every column and keeps the bytes."""
    chain, topics = Chain.of(3), Topics()
    batch = read_back(chain, topics)
    rest = batch.after(2)
    assert rest.sequence.tolist() == batch.sequence.tolist()[2:]
    assert [rest.datagram(i) for i in range(len(rest))] == [batch.datagram(i) for i in range(2, len(batch))]
    assert batch.after(0) is batch


def test_a_reader_has_every_name_and_a_bounded_table() -> None:
    """Names beyond the bound share a number, each message keeps its own name, and a given name is found."""
    names = [b"t%d" % (n % 12) for n in range(40)]
    chain, topics = Chain(), Topics.of_reader(5)
    chain.append([encode(name, b"") for name in names], {}, (0, 0))
    span = Span(topics=frozenset({b"t11", b"absent"}))
    for name in span.topics:
        topics.add(name)
    batch = read_back(chain, topics)
    assert [batch.topic_name(row) for row in range(len(batch))] == names
    assert len(topics.names) == 5 + 1
    assert [names[row] for row in span.rows(batch).nonzero()[0]] == [b"t11"] * 3
    own = [topics.names[number] for number in batch.topic if number != topics.others]
    assert set(own) == {b"t0", b"t1", b"t2", b"t11"}
    assert topics.refused == int((batch.topic == topics.others).sum()) == 40 - len(own)
