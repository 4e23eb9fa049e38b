"""Appending: the end of the log as its one appender holds it. Never waits for the disk.

The appender stores frames through a mapping and moves its tail; the keeper makes, names and syncs segments.
After a crash, frames are found by a walk of the live segment; no other record of the end of the log is
trusted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping as Dict
from collections.abc import Sequence

import numpy as np

from spool.errors import SpoolFull
from spool.format.frame import BURST, POSITION, SEQUENCE, finish, padded
from spool.format.scan import digest_address
from spool.format.segment import Identity, following, take_into_use
from spool.format.segment_format import HEAD_BYTES, MAX_BURST, PIDS, SAMPLE_BYTES, UIDS, Record
from spool.index.log_end import empty_tail, end_of, live_segment
from spool.layout import SPARE, Layout
from spool.native.memory import Address
from spool.shared.state import Field, SharedState, announced_in, place
from spool.storage.disk import Mapping, open_to_write
from spool.storage.failpoint import reach

log = logging.getLogger("bruce.spool")

_TRIES = 5
_MAPPED_BYTES = 1 << 20


class Writer:
    """The appender of a spool. One process has one; kernels use `base`, `capacity` and `tail`."""

    def __init__(self, layout: Layout, identity: Identity, shared: SharedState) -> None:
        """Find the end of the log. Raises BadSpool, OSError."""
        self.layout, self.identity, self.shared = layout, identity, shared
        self.tail, self.number = empty_tail(), 0
        self._mapping: Mapping | None = None
        self._gone = 0
        """The offset up to which its pages were let go."""
        self._header: Record | None = None
        for attempt in range(_TRIES):
            try:
                self._find_end()
            except FileNotFoundError:
                # The keeper renamed the segment between the look and the opening.
                if attempt == _TRIES - 1:
                    raise
            else:
                return

    def _find_end(self) -> None:
        live = live_segment(self.layout)
        if not live:
            return
        self._header, self.number = live.header, int(live.header["number"])
        end = end_of(live, written=self._announced())
        self.tail = end.tail
        if end.appendable:
            self._mapping = Mapping(open_to_write(live.path))
        if end.damaged:
            log.error("%s is damaged; the log goes on in a new segment", live.path)
        self.publish()

    def _announced(self) -> int:
        """The offset up to which frames of the live segment were announced in this boot; 0 when not known."""
        return announced_in(int(self.shared.words[Field.WRITTEN]), self.number)

    @property
    def base(self) -> Address:
        """The address of the live segment's first byte; 0 when a new segment is needed."""
        return self._mapping.address if self._mapping else Address(0)

    @property
    def capacity(self) -> int:
        """Bytes of the live segment."""
        return self._mapping.length if self._mapping else 0

    @property
    def is_suspect(self) -> bool:
        """Whether a sync of the live segment has failed: new frames belong into the next one."""
        return self.number > 0 and bool(self.shared.words[Field.SUSPECT] == self.number)

    def let_go(self) -> None:
        """Take what is written out of this process's memory, whenever it is a MiB more; the file has it."""
        written = int(self.tail[POSITION])
        if self._mapping and written - self._gone >= _MAPPED_BYTES:
            self._gone = self._mapping.let_go(self._gone, written)

    def switch(self) -> bool:
        """Go on in the next segment; False when the keeper has none ready."""
        number = self.number + 1
        if self.shared.words[Field.SPARE] < number:
            return False
        mapping = Mapping(open_to_write(self.layout.segment(number, SPARE)))
        reach("roll.mapped")
        if self._header is not None:
            self.tail[SEQUENCE] = following(self._header, self.tail)
        self._header, self.tail = take_into_use(mapping, self.identity, number, self.tail)
        reach("roll.bound")
        if self._mapping:
            self._mapping.close()
        self._mapping, self.number, self._gone = mapping, number, 0
        self.publish()
        reach("roll.announced")
        return True

    def publish(self) -> None:
        """Tell the other processes how far the log is written."""
        self.shared.words[Field.WRITTEN_SEQUENCE] = self.tail[SEQUENCE]
        self.shared.words[Field.WRITTEN] = place(self.number, int(self.tail[POSITION]))

    def append(
        self,
        datagrams: Sequence[bytes],
        *,
        refused: Dict[int, tuple[int, bytes]] | None = None,
        sender: tuple[int, int] = (0, 0),
        flags: int = 0,
        received_ns: int | None = None,
    ) -> int:
        """Write one frame; the sequence number of its first message.

        `datagrams`: well-formed (spool.format.wire.check). `refused`: {reason: (count, sample)}. `sender`:
        (uid, pid). Raises SpoolFull when no segment has room for it, ValueError for more than MAX_BURST
        messages.
        """
        body, rows = encode_body(datagrams, refused or {}, sender)
        need = HEAD_BYTES + padded(len(body))
        if self.is_suspect or int(self.tail[POSITION]) + need > self.capacity:
            if not self.switch() or int(self.tail[POSITION]) + need > self.capacity:
                raise SpoolFull(f"{self.layout.segments} has no room for a frame of {need} bytes")
        assert self._mapping is not None
        first, at = int(self.tail[SEQUENCE]), int(self.tail[POSITION]) + HEAD_BYTES
        self._mapping.bytes[at : at + len(body)] = np.frombuffer(body, np.uint8)
        finish(
            self.base,
            self.tail,
            len(datagrams),
            sum(count for count, _ in (refused or {}).values()),
            len(body),
            rows,
            flags | UIDS | PIDS,
            int(self.tail[BURST]) + 1,
            time.time_ns() if received_ns is None else received_ns,
            digest_address(),
        )
        self.publish()
        return first

    def close(self) -> None:
        """Close the mapping; the frames stay in the file."""
        if self._mapping:
            self._mapping.close()
            self._mapping = None


def encode_body(
    datagrams: Sequence[bytes], refused: Dict[int, tuple[int, bytes]], sender: tuple[int, int]
) -> tuple[bytes, int]:
    """(frame body, bytes of its discard rows). Raises ValueError for more than MAX_BURST messages."""
    if len(datagrams) > MAX_BURST:
        raise ValueError(f"a frame holds at most {MAX_BURST} messages")
    count = len(datagrams)
    columns = [[len(d) for d in datagrams], [sender[0]] * count, [sender[1]] * count]
    rows = b"".join(
        reason.to_bytes(2, "little")
        + len(sample[:SAMPLE_BYTES]).to_bytes(2, "little")
        + number.to_bytes(4, "little")
        + sample[:SAMPLE_BYTES]
        for reason, (number, sample) in refused.items()
    )
    return np.array(columns, "<u4").tobytes() + b"".join(datagrams) + rows, len(rows)
