"""The recorded life of a spool: all actions of a daemon, in one process, at random."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np

import spool.log.writer
from spool.errors import SpoolFull
from spool.format.frame import BURST, POSITION, SEQUENCE
from spool.format.scan import digest_address
from spool.format.wire import encode
from spool.index.segment_list import SegmentList
from spool.marks.discarded import Changes
from spool.marks.marks import Marks
from spool.native.digest import CHUNK_BYTES
from spool.shared.ledger import Ledger, add
from spool.shared.state import Field
from tests.spool.fixture import SpoolFixture
from tests.spool.powerloss.record import Recorder

SEGMENT_BYTES = 8192
MAX_BYTES = 12 * SEGMENT_BYTES
FULL = 12
"""The reason of messages that are discarded without room."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The spool's reports after `events` events."""

    events: int
    sent: int
    """Messages that were appended."""
    synced: int
    """The watermark."""
    low_watermark: int
    """Marked as delivered: everything below."""
    resolved: frozenset[int]
    """Marked as delivered above it."""
    delivered: frozenset[int]
    """Delivered: all that may be marked."""
    discarded: int
    """In the ledger."""
    copied: int
    """In its copy."""


@dataclass(slots=True)
class Recording:
    """A life, as it was recorded."""

    recorder: Recorder
    spool: bytes = b""
    """The uuid."""
    sent: dict[int, bytes] = field(default_factory=dict)
    """Every message that was appended, by sequence number, in order."""
    facts: list[Facts] = field(default_factory=list)

    def at(self, events: int) -> Facts:
        """The reports after so many events."""
        return next(fact for fact in reversed(self.facts) if fact.events <= events)


class QuietSpool(SpoolFixture):
    """A spool whose syncs only the recorder sees."""

    def close(self) -> None:
        """Close everything."""
        self.crash()

    def _disk(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()


class RecordedSpool:
    """One life, in its own directory."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.directory = directory
        (directory / "disk").mkdir()
        self.recording = Recording(Recorder(directory / "disk", note=self._note))
        self.spool: QuietSpool | None = None
        self.marks: Marks | None = None
        self.low_watermark, self.resolved = 0, set[int]()
        self.marked_watermark, self.marked = 0, frozenset[int]()
        self.delivered = frozenset[int]()
        self.discarded = self.copied = 0

    def live(self, steps: int) -> Recording:
        """Live for this many steps."""
        recorder, chance = self.recording.recorder, self.chance
        real = spool.log.writer.finish

        def finish(*arguments: object) -> None:
            # The body is written, and the head is not.
            recorder.observe()
            real(*arguments)
            recorder.observe()

        with (
            recorder.at_work(),
            mock.patch.object(spool.log.writer, "finish", finish),
            # The same seed gives the same life, at any load of the machine.
            mock.patch("time.monotonic", side_effect=lambda: 0.01 * len(recorder.events)),
        ):
            self.spool = QuietSpool(
                self.directory / "disk", self.directory, segment_bytes=SEGMENT_BYTES, max_bytes=MAX_BYTES
            )
            self._open()
            self.recording.spool = self.spool.identity.spool
            acts = (self.append, self.keep, self.deliver, self.discard, self.fail, self.die, self.stop)
            for _ in range(steps):
                chance.choices(acts, (60, 24, 12, 3, 2, 1, 1))[0]()
            self.keep()
        assert self.marks
        self.marks.close()
        self.spool.close()
        self.recording.facts.append(self._facts())
        return self.recording

    def _note(self) -> None:
        facts = self.recording.facts if hasattr(self, "recording") else None
        if facts is not None:
            facts.append(self._facts())

    def _facts(self) -> Facts:
        opened = self.spool is not None and hasattr(self.spool, "page")
        return Facts(
            len(self.recording.recorder.events),
            len(self.recording.sent),
            self.spool.synced if self.spool and opened else 0,
            self.marked_watermark,
            self.marked,
            self.delivered,
            self.discarded,
            self.copied,
        )

    def _open(self) -> None:
        assert self.spool
        path = self.spool.layout.delivery / "data.mdb"
        before = path.read_bytes() if path.exists() else b""
        self.marks = Marks(self.spool.layout.delivery, SegmentList(self.spool.layout))
        if path.read_bytes() != before:
            self.recording.recorder.committed(path, before)
        self.ledger = Ledger(self.spool.layout.ledger)
        self.spool.writer.tail[BURST] = max(int(self.spool.writer.tail[BURST]), self.ledger.burst)

    def append(self) -> None:
        """One frame, of distinct messages; sometimes with refused datagrams."""
        assert self.spool
        if self.spool.writer.capacity - self.spool.writer.tail[POSITION] < SEGMENT_BYTES // 3:
            self.keep()
        writer = self.spool.writer
        count = len(self.recording.sent)
        burst = [
            encode(b"t%d" % (n % 2), b"%d:" % (count + n) + self.chance.randbytes(self.chance.randrange(300)))
            for n in range(self.chance.randrange(1, 5))
        ]
        refused = {1: (2, b"short")} if self.chance.random() < 0.1 else {}
        full = writer.capacity - int(writer.tail[POSITION]) < 2600
        first = int(writer.tail[SEQUENCE])
        if not full:
            # Before the append: its bytes may reach the disk at once.
            self.recording.sent |= {first + n: data for n, data in enumerate(burst)}
            writer.append(burst, refused=refused)
            return
        with contextlib.suppress(SpoolFull):
            if writer.switch():
                self.recording.recorder.observe()
                first = int(writer.tail[SEQUENCE])
                self.recording.sent |= {first + n: data for n, data in enumerate(burst)}
                writer.append(burst, refused=refused)

    def keep(self) -> None:
        """One step of the keeper; after a failed one, another keeper follows."""
        assert self.spool
        # Each step copies the ledger, and tries each suspect at once.
        self.spool.keeper._copied_at = self.spool.keeper._committer._renew_at = -1e9
        try:
            self.spool.keeper.step()
        except OSError:
            self.recording.recorder.failing = lambda _: False
            self.die()
        if self.spool.keeper._ledger:
            self.copied = max(self.copied, self._counted(self.spool.keeper._ledger.burst))
        if self.spool.writer.is_suspect and self.spool.writer.switch():
            self.recording.recorder.observe()

    def _counted(self, burst: int) -> int:
        return self._bursts.get(burst, 0) if hasattr(self, "_bursts") else 0

    def deliver(self) -> None:
        """Some of the committed messages are delivered, in any order, and marked."""
        assert self.spool
        assert self.marks
        open_ones = [s for s in self.recording.sent if self.low_watermark <= s < self.spool.synced]
        open_ones = [s for s in open_ones if s not in self.resolved]
        share = self.chance.choice((0.3, 0.8, 1.0))
        self.resolved |= {s for s in open_ones[:40] if self.chance.random() < share}
        self.delivered |= self.resolved
        self.low_watermark = min((s for s in open_ones if s not in self.resolved), default=self.spool.synced)
        self.resolved = {s for s in self.resolved if s >= self.low_watermark}
        path = self.spool.layout.delivery / "data.mdb"
        self.recording.recorder.observe()
        before = path.read_bytes()
        self.marks.commit(Changes(self.low_watermark, self._chunks(), {1: self.low_watermark}))
        self.recording.recorder.committed(path, before)
        self.marked_watermark, self.marked = self.low_watermark, frozenset(self.resolved)
        self.spool.shared.words[Field.LOW_WATERMARK] = self.low_watermark

    def _chunks(self) -> dict[tuple[int, int], np.ndarray]:
        assert self.marks
        chunks: dict[tuple[int, int], np.ndarray] = {}
        self.marks.segment_list.refresh()
        segments = self.marks.segment_list.segments
        for sequence in self.resolved:
            info = segments[self.marks.segment_list.at(sequence)]
            bits = chunks.setdefault((info.number, 0), np.zeros(CHUNK_BYTES, np.uint8))
            bits[(sequence - info.first_sequence) >> 3] |= 1 << ((sequence - info.first_sequence) & 7)
        return chunks

    def discard(self) -> None:
        """A burst that finds no room."""
        assert self.spool
        if not hasattr(self, "_bursts"):
            self._bursts = Counter[int]()
        count, number = self.chance.randrange(1, 4), int(self.spool.writer.tail[BURST]) + 1
        slot = self.ledger.begin()
        self.recording.recorder.observe()
        for _ in range(count):
            add(slot, 0, 0, FULL, 1, digest_address())
        self.discarded += count
        self.ledger.commit(number)
        self._bursts[number] = self.discarded
        self.spool.writer.tail[BURST] = number
        self.recording.recorder.observe()

    def fail(self) -> None:
        """The disk refuses syncs for a while: of segments, of fresh files, of the directory, or all."""
        which = self.chance.choice((".seg", ".spare", ".tmp", "segments", ""))
        left = [self.chance.randrange(1, 4)]

        def failing(path: str) -> bool:
            left[0] -= path.endswith(which)
            return path.endswith(which) and left[0] >= 0

        self.recording.recorder.failing = failing
        self.keep()

    def die(self) -> None:
        """Every process is killed, and started again."""
        assert self.spool
        assert self.marks
        self.recording.recorder.failing = lambda _: False
        self.marks.close()
        self.spool.reopen()
        self._open()
        self.spool.shared.words[Field.LOW_WATERMARK] = self.low_watermark

    def stop(self) -> None:
        """A clean stop and start; power is then lost in the same boot or later."""
        assert self.spool
        assert self.marks
        self.recording.recorder.failing = lambda _: False
        self.marks.close()
        self.spool.stop()
        self.spool.open()
        self._open()
        self.spool.shared.words[Field.LOW_WATERMARK] = self.low_watermark
