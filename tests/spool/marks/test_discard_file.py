"""The discard file: whole records only, with any bytes at its end, and at most two generations."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.errors import BadSpool
from spool.format.batch import Batch, Topics
from spool.format.wire import Reason, encode
from spool.layout import older
from spool.marks import discard_file
from spool.marks.discard_file import (
    HEAD,
    DiscardFile,
    GivenUp,
    Records,
    decode_record,
    encode_records,
    lock_of,
    read_discard_file,
    read_file,
)
from spool.storage.disk import LOCK_MODE, read_at
from spool.storage.lock import Lock
from tests.spool.marks.discards import encode_record, records_of

SPOOL = bytes(range(16))
GOLDEN = Path(__file__).parents[2] / "golden/discards-v1.bin"


def message(sequence: int, value: bytes = b"v", spool: bytes = SPOOL) -> GivenUp:
    """A message that is too large."""
    return GivenUp(
        spool, sequence, int(Reason.TOO_LARGE), 1_700_000_000 * 10**9 + sequence, encode(b"t", value)
    )


MESSAGES = st.builds(
    GivenUp,
    st.binary(min_size=16, max_size=16),
    st.integers(0, 1 << 62),
    st.integers(0, 1000),
    st.integers(0, 1 << 62),
    st.binary(max_size=300),
)


@given(MESSAGES, st.binary(max_size=20))
def test_records_round_trip(one: GivenUp, behind: bytes) -> None:
    """A record is read back, with any bytes behind it, and begins at a multiple of 8."""
    data = encode_record(one)
    assert len(data) % 8 == 0
    assert decode_record(data + behind, 0) == (one, len(data))


@given(st.lists(st.tuples(MESSAGES, st.binary(max_size=9)), max_size=20), st.integers(0, 1 << 62))
def test_records_of_a_batch(drawn: list[tuple[GivenUp, bytes]], time_ns: int) -> None:
    """They are those of its messages, one by one, whatever is between the datagrams; joined, too."""
    messages = [replace(one, spool=SPOOL, time_ns=time_ns) for one, _ in drawn]
    data = b"".join(gap + one.datagram for one, gap in drawn)
    lengths = np.array([len(one.datagram) for one in messages], np.int64)
    gaps = np.array([len(gap) for _, gap in drawn], np.int64)
    columns = np.zeros((5, len(drawn)), np.int64)
    wide = [[one.sequence for one in messages], *columns[:3], np.cumsum(lengths + gaps) - lengths, columns[3]]
    batch = Batch.of(np.frombuffer(data + b"-", np.uint8), Topics(), wide, [*columns, lengths])
    reasons = np.array([one.reason for one in messages], np.int32)
    parts = [
        encode_records(batch, rows, reasons[rows], SPOOL, time_ns)
        for rows in np.array_split(np.arange(len(drawn)), 3)
    ]
    expected = records_of(messages)
    found = Records.join(parts)
    assert found.data.tobytes() == expected.data.tobytes()
    assert found.ends.tolist() == expected.ends.tolist()


@given(MESSAGES, st.data())
def test_a_record_with_one_wrong_byte_is_none(one: GivenUp, chance: st.DataObject) -> None:
    """Every byte except the padding counts."""
    data = bytearray(encode_record(one))
    at = chance.draw(st.integers(0, 56 + len(one.datagram) - 1))
    data[at] ^= chance.draw(st.integers(1, 255))
    assert decode_record(bytes(data), 0) is None


def test_golden() -> None:
    """A golden file reads the same as it was written."""
    found = list(read_discard_file(GOLDEN))
    assert found == [message(n, b"value %d" % n) for n in range(3)]
    assert GOLDEN.read_bytes() == HEAD + b"".join(map(encode_record, found))


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=8), st.data())
def test_a_torn_end_is_cut(values: list[bytes], chance: st.DataObject) -> None:
    """Cut at any byte: the whole records before it are read, and so are those appended next."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        path = Path(directory) / "discards"
        messages = [message(n, value) for n, value in enumerate(values)]
        DiscardFile(path, 1 << 20).append(records_of(messages))
        data = path.read_bytes()
        cut = chance.draw(st.integers(0, len(data)))
        path.write_bytes(data[:cut] + chance.draw(st.sampled_from([b"", bytes(50), b"bdis" * 9])))
        if cut < len(HEAD):
            path.write_bytes(data[:cut])
        left = list(read_discard_file(path))
        assert left == messages[: len(left)]
        sizes = [len(HEAD)]
        for one in messages:
            sizes.append(sizes[-1] + len(encode_record(one)))
        assert len(left) >= sum(size <= cut for size in sizes[1:])
        DiscardFile(path, 1 << 20).append(records_of([message(99)]))
        assert list(read_discard_file(path)) == [*left, message(99)]


def test_two_generations(tmp_path: Path) -> None:
    """It never takes more than twice the size, and keeps the youngest; each restart continues it."""
    path = tmp_path / "discards"
    size = len(encode_record(message(0)))
    for n in range(0, 100, 5):
        DiscardFile(path, len(HEAD) + 10 * size).append(records_of([message(n + i) for i in range(5)]))
        assert path.stat().st_size <= len(HEAD) + 10 * size
    assert older(path).stat().st_size <= len(HEAD) + 10 * size
    assert list(read_discard_file(path)) == [message(n) for n in range(80, 100)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["discards", "discards.1", "discards.lock"]


def test_many_at_once_fill_several_generations(tmp_path: Path) -> None:
    """The last ones are kept; a record larger than a generation has its own."""
    path = tmp_path / "discards"
    size = len(encode_record(message(0)))
    DiscardFile(path, len(HEAD) + 3 * size).append(records_of([message(n) for n in range(10)]))
    assert list(read_discard_file(path)) == [message(n) for n in range(6, 10)]
    DiscardFile(path, len(HEAD) + 3 * size).append(records_of([message(10, b"x" * 5000)]))
    assert list(read_discard_file(path))[-1] == message(10, b"x" * 5000)


def test_a_damaged_record_is_passed_over(tmp_path: Path) -> None:
    """The others are read; and no record behind it is lost by the cut."""
    path = tmp_path / "discards"
    DiscardFile(path, 1 << 20).append(records_of([message(n) for n in range(5)]))
    data = bytearray(path.read_bytes())
    data[len(HEAD) + 2 * len(encode_record(message(0))) + 60] ^= 1
    path.write_bytes(data)
    DiscardFile(path, 1 << 20).append(records_of([message(5)]))
    assert [one.sequence for one in read_discard_file(path)] == [0, 1, 3, 4, 5]


def test_a_long_file_is_read_in_pieces(tmp_path: Path) -> None:
    """Memory does not grow with the file, for a reader or for the next writer; what is in it is found."""
    path, far = tmp_path / "discards", 200 << 20
    file = DiscardFile(path, 1 << 30)
    file.append(records_of([message(1, b"x" * 3_000_000)]))
    with path.open("r+b") as other:
        other.seek(far)
        other.write(encode_record(message(2)))
        other.truncate(far + (50 << 20))
    tracemalloc.start()
    try:
        assert [one.sequence for one in read_file(path)] == [1, 2]
        DiscardFile(path, 1 << 30).append(records_of([message(3)]))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 24 << 20
    assert [one.sequence for one in read_file(path)] == [1, 2, 3]
    assert path.stat().st_size == far + 2 * len(encode_record(message(2)))


def test_claims_in_a_damaged_message_cost_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of records that claim all behind them: the bytes are read a few times, and no record is lost."""
    path, read = tmp_path / "discards", 0
    head = bytearray(encode_record(message(0))[:56])
    head[12:16] = (1 << 20).to_bytes(4, "little")
    planted = bytes(-len(encode_record(message(0, b""))) % 8) + bytes(head) * (60_000 // len(head))
    DiscardFile(path, 1 << 30).append(records_of([message(n, planted) for n in range(100)]))
    data = bytearray(path.read_bytes())
    size = len(encode_record(message(0, planted)))
    for n in range(99):
        data[len(HEAD) + n * size] ^= 1
    path.write_bytes(data)

    def counted(fd: int, length: int, offset: int) -> bytes:
        nonlocal read
        data = read_at(fd, length, offset)
        read += len(data)
        return data

    monkeypatch.setattr(discard_file, "read_at", counted)
    assert [one.sequence for one in read_file(path)] == [99]
    assert discard_file._AGAIN * len(data) < read < 50 * len(data)


def test_a_message_twice_is_read_once(tmp_path: Path) -> None:
    """A crash between the file and the mark leaves it; the same number of another spool differs."""
    path = tmp_path / "discards"
    DiscardFile(path, 1 << 20).append(records_of([message(1), message(1), message(1, spool=bytes(16))]))
    assert list(read_discard_file(path)) == [message(1), message(1, spool=bytes(16))]


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    """It is neither read nor overwritten."""
    path = tmp_path / "passwd"
    path.write_bytes(b"root:x:0:0:root:/root:/bin/bash\n")
    with pytest.raises(BadSpool, match=r"is no discard file; name another one in \[dispatch\] discard_file"):
        DiscardFile(path, 1 << 20).append(records_of([message(1)]))
    with pytest.raises(BadSpool):
        list(read_discard_file(path))
    assert path.read_bytes().startswith(b"root:x")


def test_a_head_that_a_power_loss_left_as_zeros(tmp_path: Path) -> None:
    """Whole records behind it are kept, and others are appended; so is it where all is zeros."""
    path = tmp_path / "discards"
    DiscardFile(path, 1 << 20).append(records_of([message(1)]))
    path.write_bytes(bytes(len(HEAD)) + path.read_bytes()[len(HEAD) :])
    assert list(read_discard_file(path)) == [message(1)]
    DiscardFile(path, 1 << 20).append(records_of([message(2)]))
    assert list(read_discard_file(path)) == [message(1), message(2)]
    assert path.read_bytes().startswith(HEAD)
    path.write_bytes(bytes(100_000))
    assert list(read_discard_file(path)) == []
    DiscardFile(path, 1 << 20).append(records_of([message(3)]))
    assert list(read_discard_file(path)) == [message(3)]


def test_another_file_that_begins_with_zeros(tmp_path: Path) -> None:
    """It is neither read nor overwritten."""
    path = tmp_path / "disk.img"
    path.write_bytes(bytes(100_000) + b"something")
    with pytest.raises(BadSpool):
        DiscardFile(path, 1 << 20).append(records_of([message(1)]))
    with pytest.raises(BadSpool):
        list(read_discard_file(path))
    assert path.read_bytes() == bytes(100_000) + b"something"


def test_writers_take_turns(tmp_path: Path) -> None:
    """Two processes with one file: each record of both is whole, through each change of generation."""
    path, rounds, each = tmp_path / "discards", 40, 5
    size = len(encode_record(message(0)))
    children = []
    for writer in range(2):
        pid = os.fork()
        if pid == 0:
            try:
                file = DiscardFile(path, len(HEAD) + rounds * each * size, patience_s=60)
                for n in range(rounds):
                    file.append(records_of([message(1000 * writer + each * n + i) for i in range(each)]))
                os._exit(0)
            finally:
                os._exit(1)
        children.append(pid)
    for pid in children:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    # Together they fill both generations to the last record.
    found = [one.sequence for one in read_discard_file(path)]
    assert sorted(found) == [1000 * writer + n for writer in range(2) for n in range(rounds * each)]
    for writer in range(2):
        assert [n for n in found if n // 1000 == writer] == sorted(n for n in found if n // 1000 == writer)


def test_a_writer_that_stands_still_is_not_waited_for(tmp_path: Path) -> None:
    """The error is temporary: once the other process lets go, the messages are written."""
    path = tmp_path / "discards"
    file = DiscardFile(path, 1 << 20, patience_s=0.1)
    file.append(records_of([message(1)]))
    other = Lock(lock_of(path), "being written to by another")
    with pytest.raises(OSError, match="it is already being written to") as refused:
        file.append(records_of([message(2)]))
    assert refused.value.errno == errno.EWOULDBLOCK
    other.release()
    file.append(records_of([message(2)]))
    assert [one.sequence for one in read_discard_file(path)] == [1, 2]


def test_who_may_read_it_stops_no_writer(tmp_path: Path) -> None:
    """A group may read the file, and so lock it; the lock that counts it may not open."""
    path = tmp_path / "discards"
    file = DiscardFile(path, 1 << 20, patience_s=0.1)
    file.append(records_of([message(1)]))
    with path.open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_EX)
        file.append(records_of([message(2)]))
    assert [one.sequence for one in read_discard_file(path)] == [1, 2]
    assert stat.S_IMODE(lock_of(path).stat().st_mode) == LOCK_MODE
