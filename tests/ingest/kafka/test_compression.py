"""Compressed records are those that were given, and no batch makes more of them than there is memory for."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.kafka.compression import MOST_BYTES, Decompressor
from ingest.kafka.record_batch import BadBatch, Wrong

MOST = 10_000
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
JAVA_HEAD = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
Compress = Callable[[bytes], bytes]


def arrow(codec: str) -> Compress:
    """A compressor that is not ours."""
    return lambda data: bytes(pa.compress(data, codec=codec, asbytes=True))


def java(data: bytes, size: int = 1000) -> bytes:
    """Snappy as the Java library writes it, in blocks of so many bytes."""
    blocks = [arrow("snappy")(data[at : at + size]) for at in range(0, len(data), size)]
    return JAVA_HEAD + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


CODECS = [
    pytest.param(GZIP, arrow("gzip"), id="gzip"),
    pytest.param(SNAPPY, arrow("snappy"), id="snappy"),
    pytest.param(SNAPPY, java, id="java"),
    pytest.param(LZ4, arrow("lz4"), id="lz4"),
    pytest.param(ZSTD, arrow("zstd"), id="zstd"),
]
each_codec = pytest.mark.parametrize(("codec", "compress"), CODECS)


def records(codec: int, data: bytes, most: int = MOST) -> bytes:
    """The records of a batch."""
    return bytes(Decompressor(most).records(codec, memoryview(data)))


def is_refused(codec: int, data: bytes, most: int = MOST) -> bool:
    """Whether they are refused, as bytes that no records come of."""
    try:
        records(codec, data, most)
    except BadBatch as error:
        return error.wrong is (Wrong.UNPACKED if codec in range(1, 5) else Wrong.CODEC) and error.at == -1
    return False


@each_codec
@given(st.binary(max_size=MOST))
@settings(max_examples=40)
def test_round_trip(codec: int, compress: Compress, data: bytes) -> None:
    """Records that another library compressed come out as they were."""
    assert records(codec, compress(data)) == data


def test_uncompressed() -> None:
    """Records without a codec are those of the request, without a copy."""
    data = memoryview(b"records" * MOST)
    assert Decompressor(MOST).records(0, data) is data


@each_codec
def test_most(codec: int, compress: Compress) -> None:
    """A batch may have as many bytes as the memory for it, and not one more."""
    assert records(codec, compress(bytes(MOST))) == bytes(MOST)
    assert is_refused(codec, compress(bytes(MOST + 1)))


@each_codec
def test_bomb(codec: int, compress: Compress) -> None:
    """A small input that would become large is refused."""
    bomb = compress(bytes(3 * MOST_BYTES))
    assert is_refused(codec, bomb)
    assert is_refused(codec, bomb, MOST_BYTES)


@each_codec
def test_one_after_the_other(codec: int, compress: Compress) -> None:
    """Records stay as they are when the next batch is decompressed, and after one that is refused."""
    decompressor = Decompressor(MOST)
    first = decompressor.records(codec, memoryview(compress(b"first" * 100)))
    with pytest.raises(BadBatch):
        decompressor.records(codec, memoryview(compress(bytes(MOST + 1))))
    second = decompressor.records(codec, memoryview(compress(b"second")))
    assert (bytes(first), bytes(second)) == (b"first" * 100, b"second")


@each_codec
def test_cut_short(codec: int, compress: Compress) -> None:
    """A batch that ends too early is refused, wherever it ends."""
    whole = compress(b"some records, and some more of them" * 3)
    begin = len(JAVA_HEAD) + 1 if compress is java else 0
    assert [cut for cut in range(begin, len(whole)) if not is_refused(codec, whole[:cut])] == []


def test_cut_head() -> None:
    """Snappy of the Java library that ends in its head is refused."""
    assert [cut for cut in range(len(JAVA_HEAD)) if not is_refused(SNAPPY, JAVA_HEAD[:cut])] == []


@each_codec
def test_garbage(codec: int, compress: Compress) -> None:
    """No bytes, bytes that are none of the codec's, and the records themselves are refused."""
    for data in (b"", b"\x01", b"\xff" * 100, b"garbage " * 100):
        assert is_refused(codec, data)


@each_codec
@given(st.data())
@settings(max_examples=100)
def test_damage(codec: int, compress: Compress, data: st.DataObject) -> None:
    """A batch with a byte changed is refused, or has records within the memory for them."""
    damaged = bytearray(compress(data.draw(st.binary(min_size=1, max_size=300)) * 5))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    assert is_refused(codec, bytes(damaged), 2000) or len(records(codec, bytes(damaged), 2000)) <= 2000


@given(
    st.integers(1, 7), st.sampled_from([b"", JAVA_HEAD, b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"]), st.binary()
)
@settings(max_examples=300)
def test_any_bytes(codec: int, begin: bytes, data: bytes) -> None:
    """Any bytes at all are refused, or have records within the memory for them."""
    assert is_refused(codec, begin + data, 100) or len(records(codec, begin + data, 100)) <= 100


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec(codec: int) -> None:
    """The numbers that Kafka gives no codec are refused."""
    assert is_refused(codec, b"records")


@pytest.mark.parametrize("size", [0, -1, -(1 << 31), 4, 100, (1 << 31) - 1])
def test_java_sizes(size: int) -> None:
    """A block of the Java library that is empty, or larger than the batch, is refused."""
    block = arrow("snappy")(b"v")
    assert len(block) == 3
    whole = JAVA_HEAD + struct.pack(">i", 3) + block
    assert records(SNAPPY, whole) == b"v"
    assert is_refused(SNAPPY, whole + struct.pack(">i", size) + block)


def test_java_bomb_of_blocks() -> None:
    """Blocks of the Java library have as many bytes together as one batch may have."""
    assert records(SNAPPY, java(bytes(MOST), 7)) == bytes(MOST)
    assert is_refused(SNAPPY, java(bytes(MOST), 7) + java(b"v")[len(JAVA_HEAD) :])
