"""Any order of events in a spool, against a model of two lists: the messages sent, and those gone."""

from __future__ import annotations

import random
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spool.format.frame import DISCARDED
from spool.format.wire import encode
from spool.index.log_end import EPOCH
from spool.layout import SENT
from spool.shared.state import Field
from tests.spool.fixture import SpoolFixture

SEGMENTS = 12
"""max_bytes, in segments."""


class SpoolMachine(RuleBasedStateMachine):
    """The model: `sent`, (sequence, datagram) in order; below `low_watermark` they are delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
        self.spool = SpoolFixture(self.directory, max_bytes=SEGMENTS * 8192)
        self.sent: list[tuple[int, bytes]] = []
        self.refused = 0
        self.stored = 0
        self.made = 0
        self.low_watermark = 0

    @initialize()
    def begin(self) -> None:
        """An empty spool."""

    @rule(
        sizes=st.lists(st.integers(0, 900), max_size=4),
        refused=st.integers(0, 3),
        data=st.integers(0, 3),
    )
    def append(self, sizes: list[int], refused: int, data: int) -> None:
        """One frame, if there is room."""
        burst = [
            encode(b"topic-%d" % data, b"%d" % (self.made + i) + b"v" * n, key=b"k" * data)
            for i, n in enumerate(sizes)
        ]
        self.made += len(burst)
        rows = {1: (refused, b"r")} if refused else {}
        room = self.spool.writer.capacity - int(self.spool.writer.tail[0])
        if room < 5000 and self.spool.shared.words[Field.SPARE] <= self.spool.writer.number:
            self.spool.step()
            if self.spool.shared.words[Field.SPARE] <= self.spool.writer.number:
                return
        first = self.spool.writer.append(burst, refused=rows)
        self.sent += [(first + i, d) for i, d in enumerate(burst)]
        self.refused += refused
        self.stored += len(burst)

    @rule()
    def keep(self) -> None:
        """One step of the keeper."""
        self.spool.step()
        assert self.spool.synced == int(self.spool.writer.tail[1])

    @rule(part=st.floats(0, 1))
    def deliver(self, part: float) -> None:
        """A share of the committed messages is delivered."""
        committed = [s for s, _ in self.sent if s < self.spool.synced]
        if committed:
            self.low_watermark = max(self.low_watermark, committed[int(part * (len(committed) - 1))])
            self.spool.shared.words[Field.LOW_WATERMARK] = self.low_watermark
            self.spool.step()

    @rule()
    def crash(self) -> None:
        """Every process dies."""
        self.spool.reopen()
        self.spool.shared.words[Field.LOW_WATERMARK] = self.low_watermark

    @rule()
    def stop(self) -> None:
        """A clean stop and start."""
        self.spool.stop()
        self.spool.open()
        self.spool.shared.words[Field.LOW_WATERMARK] = self.low_watermark

    @precondition(lambda self: len(self.sent) > 0)
    @rule(seed=st.integers(0, 1 << 20))
    def lose_power(self, seed: int) -> None:
        """Power goes; sectors that were not synced may be lost."""
        synced = self.spool.synced
        self.spool.lose_power(random.Random(seed))
        self.spool.open()
        self.spool.shared.words[Field.LOW_WATERMARK] = self.low_watermark
        found = self.spool.records()
        lost = [r for r in self.sent if r[0] >= synced and r not in set(found)]
        self.sent = [r for r in self.sent if r not in set(lost)]
        tail = self.spool.writer.tail
        # Lost messages that the log can identify as missing stay counted as received.
        assert self.stored - len(lost) <= tail[4] <= self.stored
        assert tail[DISCARDED + 1] <= self.refused
        self.stored, self.refused = int(tail[4]), int(tail[DISCARDED + 1])
        assert tail[1] >= synced

    @rule()
    def lose_index(self) -> None:
        """The index is removed while no process has it open."""
        self.spool.crash()
        shutil.rmtree(self.spool.layout.index)
        self.spool.open()
        self.spool.shared.words[Field.LOW_WATERMARK] = self.low_watermark

    @invariant()
    def what_is_there_is_what_was_sent(self) -> None:
        """Every message that is not delivered and removed is there, in order, once."""
        found = self.spool.records()
        gone = len(self.sent) - len(found)
        assert gone >= 0
        assert found == self.sent[gone:]
        assert all(sequence < self.low_watermark for sequence, _ in self.sent[:gone])

    @invariant()
    def totals_are_exact(self) -> None:
        """The tail counts every message and every discard since the spool began."""
        assert self.spool.writer.tail[4] == self.stored
        assert self.spool.writer.tail[DISCARDED + 1] == self.refused

    @invariant()
    def names_are_in_order(self) -> None:
        """Segment numbers have no gap, and only delivered segments are called sent."""
        segments = self.spool.segments()
        numbers = [int(str(segment.header["number"])) for segment in segments]
        assert numbers == list(range(min(numbers, default=0), max(numbers, default=-1) + 1))
        named = self.spool.layout.list_segments()
        for (_, suffix), (following, _) in pairwise(named):
            assert suffix != SENT or following <= self.low_watermark
        assert self.spool.writer.tail[1] < EPOCH << 20

    def teardown(self) -> None:
        """Leave nothing behind."""
        self.spool.crash()
        shutil.rmtree(self.directory)


TestSpool = SpoolMachine.TestCase
TestSpool.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
