"""The shared state: words that the processes of a daemon share, one by one."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.format.wire import encode
from spool.shared.runtime import shared_state_path
from spool.shared.state import (
    BROKER_ROWS,
    BROKER_WORDS,
    MOST_QUOTAS,
    QUOTA_ROW,
    SAMPLE_WORDS,
    SAMPLES,
    STEP_S,
    TEXT_BYTES,
    WANTED_NS,
    WORDS,
    WORKER_WORDS,
    Change,
    Field,
    History,
    SharedState,
    change_over,
    grows,
    other_format,
    place,
    read_shared_state,
    read_text,
    split_place,
)
from tests.spool.fixture import SpoolFixture


@given(st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 32) - 1).map(lambda n: n * 8))
def test_places_round_trip(number: int, position: int) -> None:
    """A log position is one word with segment number and offset, and both are read back."""
    assert split_place(place(number, position)) == (number, position)
    assert -(1 << 63) <= place(number, position) < 1 << 63


@given(*[st.tuples(st.integers(0, 1 << 30), st.integers(0, 1 << 29).map(lambda n: n * 8))] * 2)
def test_places_are_in_the_order_of_the_log(one: tuple[int, int], other: tuple[int, int]) -> None:
    """Comparing these words compares positions in the log."""
    assert (place(*one) < place(*other)) == (one < other)


def test_everybody_maps_the_same_words(tmp_path: Path) -> None:
    """A word that one process stores, another reads, and so does a reader without write access."""
    one, other = SharedState(tmp_path / "page"), SharedState(tmp_path / "page")
    one.words[Field.WRITTEN] = place(7, 4096)
    assert other.place(Field.WRITTEN) == (7, 4096)
    looked = read_shared_state(tmp_path / "page")
    assert looked is not None
    assert looked[Field.WRITTEN] == place(7, 4096)
    assert other.address_of(Field.WRITTEN) == other.address + 64


@pytest.mark.parametrize("data", [None, b"", bytes(8 * WORDS), b"x" * 100])
def test_what_is_no_page_is_none(tmp_path: Path, data: bytes | None) -> None:
    """A missing file, or another one, is no shared state."""
    if data is not None:
        (tmp_path / "page").write_bytes(data)
    assert read_shared_state(tmp_path / "page") is None


def test_each_writer_has_cache_lines_of_its_own() -> None:
    """No two processes store to one cache line: the keeper's stores do not slow down the appender."""
    writers = {
        "supervisor": [Field.MAGIC, Field.STARTED_NS, Field.DIRECTORY],
        "ingest": [Field.WRITTEN, Field.WRITTEN_SEQUENCE],
        "keeper": [
            *(Field.SYNCED, Field.SYNCED_SEQUENCE, Field.SPARE, Field.FULL, Field.KEEPER_WAITS),
            *(Field.FULL_SINCE_NS, Field.WHEN_FULL, Field.EVICT),
        ],
        "delivery": [Field.LOW_WATERMARK],
    }
    lines = {name: {field // 8 for field in fields} for name, fields in writers.items()}
    taken = [line for found in lines.values() for line in found]
    assert len(taken) == len(set(taken))
    assert Field.BROKERS + 4 * (BROKER_ROWS + 1) <= WORDS


@pytest.mark.parametrize("field", [Field.ACK_WANTS_MARKS_NS, Field.KAFKA_WANTS_MARKS_NS])
def test_marks_are_wanted_for_a_while(tmp_path: Path, field: Field) -> None:
    """By whoever waits, in any process; not for ever, nor by a time that is still to come."""
    shared, other = SharedState(tmp_path / "page"), SharedState(tmp_path / "page")
    assert not shared.wants_marks()
    other.want_marks(field)
    assert shared.wants_marks()
    wanted_ns = int(shared.words[field])
    for ago_ns, wanted in ((WANTED_NS - 1_000_000_000, True), (WANTED_NS, False), (-WANTED_NS, False)):
        shared.words[field] = wanted_ns - ago_ns
        assert shared.wants_marks() == wanted


PLANTED: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to("/dev/zero"),
    "another user's": lambda path: (path.write_bytes(forged(path)), os.chown(path, 65534, 65534)),
    "open to others": lambda path: (path.write_bytes(forged(path)), path.chmod(0o666)),
    "of two names": lambda path: (path.write_bytes(forged(path)), os.link(path, path.with_name("name"))),
    "cut": lambda path: path.write_bytes(forged(path)[:-8]),
}


def forged(path: Path) -> bytes:
    """A shared state that says that this much is delivered."""
    shared = SharedState(path.with_name("forged"))
    shared.words[Field.LOW_WATERMARK] = 1 << 40
    return shared.words.tobytes()


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_page_is_neither_read_nor_mapped(tmp_path: Path, kind: str) -> None:
    """Readers see no shared state, and do not wait for it; the spool's owner creates his own there."""
    if os.geteuid():
        pytest.skip("giving a file to another user needs root")
    path = tmp_path / "page"
    PLANTED[kind](path)
    assert read_shared_state(path) is None
    assert other_format(path) is None
    shared = SharedState(path)
    assert shared.words[Field.LOW_WATERMARK] == 0
    status = path.lstat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_nlink) == (0o640, os.geteuid(), 1)


def test_pages_differ_by_spool_and_boot(tmp_path: Path) -> None:
    """Two spools, or two boots, never use one shared state."""
    paths = {
        shared_state_path(tmp_path, s, b) for s in (b"a" * 16, b"b" * 16) for b in (b"a" * 16, b"b" * 16)
    }
    assert len(paths) == 4
    assert np.dtype(np.int64).itemsize * WORDS == 98304


def test_no_two_fields_overlap() -> None:
    """Rows and texts end before the next field, and the last of them before the end of the shared state."""
    text = 2 + TEXT_BYTES // 8
    words = {
        Field.WORKERS: 8 * WORKER_WORDS,
        Field.TROUBLE: text,
        Field.QUOTA_ROWS: MOST_QUOTAS * QUOTA_ROW,
        Field.BROKERS: 1 + BROKER_ROWS * BROKER_WORDS,
        Field.LAST_TROUBLE: text,
        Field.HISTORY: 1 + SAMPLES * SAMPLE_WORDS,
        Field.UNREAD: text,
        Field.AWAITED: text,
        Field.LOST_INPUTS: text,
    }
    fields = sorted(Field)
    for field, behind in zip(fields, [*fields[1:], WORDS], strict=True):
        assert field + words.get(field, 1) <= behind, field.name


@given(st.text(max_size=TEXT_BYTES + 50))
def test_texts_round_trip(text: str) -> None:
    """A text is read back, as far as there is room for whole characters, over any earlier text."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        shared = SharedState(Path(directory) / "page")
        shared.write_text(Field.TROUBLE, "before" * 40)
        shared.write_text(Field.TROUBLE, text)
        expected = text.encode()[:TEXT_BYTES].decode("utf-8", "ignore")
        assert read_text(shared.words, Field.TROUBLE) == expected


@pytest.mark.parametrize("data", [b"", b"brucepg1" + bytes(8184)])
def test_the_page_of_another_release_is_made_anew(tmp_path: Path, data: bytes) -> None:
    """A daemon that is upgraded without a reboot finds a smaller file: no store goes behind its end."""
    (tmp_path / "page").write_bytes(data)
    shared = SharedState(tmp_path / "page")
    shared.words[WORDS - 1] = 7
    assert not shared.words[1 : WORDS - 1].any()
    assert read_shared_state(tmp_path / "page") is not None


@pytest.mark.parametrize("word", [0, 1, 2, 3])
def test_a_text_that_is_being_written_is_none(tmp_path: Path, word: int) -> None:
    """While one word of it is not stored, a reader gets nothing; and the words end within the file."""
    shared = SharedState(tmp_path / "page")
    assert read_text(shared.words, Field.TROUBLE) == ""
    shared.write_text(Field.TROUBLE, "0123456789")
    shared.words[Field.TROUBLE + word] ^= 0x55
    assert read_text(shared.words, Field.TROUBLE) is None
    assert Field.TROUBLE + 2 + TEXT_BYTES // 8 <= WORDS


def test_a_text_with_a_name_that_is_no_text(tmp_path: Path) -> None:
    """A path of any bytes does not prevent an error text that contains it."""
    shared = SharedState(tmp_path / "page")
    shared.write_text(Field.TROUBLE, f"{os.fsdecode(b'/spool' + bytes([255]))} is full")
    words = read_shared_state(tmp_path / "page")
    assert words is not None
    assert read_text(words, Field.TROUBLE) == "/spool\\udcff is full"


SECOND = 10**9


class Clock:
    """Time that passes when a test moves it."""

    def __init__(self) -> None:
        self.ns = 1000 * SECOND

    def __call__(self) -> int:
        return self.ns


def filled(clock: Clock, samples: int) -> np.ndarray:
    """A shared state with samples: per second 10 received, 8 delivered, 1 discarded, 100 bytes more."""
    words = np.zeros(WORDS, np.int64)
    history = History(words, clock)
    for number in range(samples):
        seconds = int(number * STEP_S)
        assert history.due()
        history.note(10 * seconds, 8 * seconds, seconds, 100 * seconds)
        assert not history.due()
        clock.ns += int(STEP_S * SECOND)
    return words


@pytest.mark.parametrize("samples", [2, 13, SAMPLES - 1, SAMPLES, SAMPLES + 1, 3 * SAMPLES])
def test_rates(samples: int) -> None:
    """The last minute and quarter of an hour, or as much as there is; also when the ring wraps around."""
    clock = Clock()
    words = filled(clock, samples)
    for asked in (60, 900):
        seconds = min(asked, int((samples - 1) * STEP_S))
        found = change_over(words, asked, clock.ns)
        assert found == Change(seconds, 10 * seconds, 8 * seconds, seconds, 100 * seconds)


def test_nothing_is_known() -> None:
    """Without samples, with one, and after a pause of the keeper, no rate is invented."""
    clock = Clock()
    assert change_over(np.zeros(WORDS, np.int64), 60, clock.ns) is None
    assert change_over(filled(clock, 1), 60, clock.ns) is None
    words = filled(clock, 10)
    assert change_over(words, 60, clock.ns) is not None
    assert change_over(words, 60, clock.ns + 60 * SECOND) is None


def grown(backlogs: list[int]) -> bool:
    """Whether it grows when a sample every STEP_S finds these messages."""
    clock, words = Clock(), np.zeros(WORDS, np.int64)
    history = History(words, clock)
    for backlog in backlogs:
        history.note(backlog, 0, 0, 0)
        clock.ns += int(STEP_S * SECOND)
    return grows(words)


def test_a_burst_is_no_growth() -> None:
    """The backlog grows if it did in each quarter of the last minute; a burst in one of them is no trend."""
    assert grown([100 * number for number in range(14)])
    assert grown([*[7] * 20, *(8 + 100 * number for number in range(13))])
    assert not grown([100 * number for number in range(12)])
    assert not grown([])
    assert not grown([0] * 10 + [5000] * 4)
    assert not grown([5000 * number for number in range(4)] + [20_000] * 12)
    assert not grown([100 * number for number in range(14)] + [1300] * 3)


def test_a_sample_that_is_being_written_is_not_read() -> None:
    """The next row may be half-written, and is not read."""
    clock = Clock()
    words = filled(clock, SAMPLES + 5)
    before = change_over(words, 10_000, clock.ns)
    words[Field.HISTORY + 1 + 5 * (5 % SAMPLES) :][:5] = -1
    assert change_over(words, 10_000, clock.ns) == before


def test_a_successor_goes_on(tmp_path: Path) -> None:
    """A keeper that takes over leaves its first sample when its predecessor's last one has the right age."""
    clock, shared = Clock(), SharedState(tmp_path / "page")
    History(shared.words, clock).note(1, 2, 3, 4)
    assert not History(shared.words, clock).due()
    clock.ns += int(STEP_S * SECOND)
    assert History(shared.words, clock).due()


def test_the_keeper_counts(tmp_path: Path) -> None:
    """The keeper counts: received includes refused, with the deliverer's counts and the backlog's bytes."""
    spool, clock = SpoolFixture(tmp_path), Clock()
    spool.shared.words[Field.HISTORY] = 0
    spool.keeper._history = History(spool.shared.words, clock)
    spool.step()
    for _ in range(3):
        spool.append([encode(b"t", b"v" * 100)] * 10, refused={1: (2, b"short")})
    spool.shared.words[[Field.DELIVERED, Field.DISCARDED]] = 7, 1
    clock.ns += int(STEP_S * SECOND)
    spool.step()
    change = change_over(spool.shared.words, 60, clock.ns)
    assert change is not None
    assert change[:4] == (STEP_S, 36, 7, 7)
    assert 30 * 100 < change.waiting_bytes < 8192
    spool.shared.words[Field.LOW_WATERMARK] = 30
    clock.ns += int(STEP_S * SECOND)
    spool.step()
    change = change_over(spool.shared.words, 60, clock.ns)
    assert change is not None
    assert change.waiting_bytes <= 0
    spool.crash()
