"""Following single messages: what happens to each, as lines of JSON, for a limited time and number of bytes.

A line has `time`, `event`, and `sequence`; what more it has depends on the event:

    received      topic, key_bytes, value_bytes, uid, pid; if asked for, key, value and headers
    routed        partition: where it is to go
    sent          partition, broker: handed to the producer
    waits         partition, or null: it may not go yet; comes once, until it goes or is placed elsewhere
    acknowledged  partition, offset, after_ms: since it was received; without acknowledgements (acks = 0) the
                  offset is -1
    failed        partition, error: it is sent again, or given up
    discarded     reason, dead_lettered
    began, resumed, ended   of the trace itself: token, and why it ended

Which rows of a batch are meant is found by compiled loops over its columns; Python is entered for those.
Without a trace a batch costs a comparison.
"""

from __future__ import annotations

import base64
import json
import logging
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dispatch.errors import name_of
from dispatch.pool import Outcomes, Pool
from router.outcomes.trace_request import TraceRequest, events_path, read_request
from spool.errors import NotOurs
from spool.format.batch import Batch, Topics
from spool.format.wire import DEAD_LETTERED, reason_name
from spool.native.kernel import kernel
from spool.storage.ownership import append_own

_log = logging.getLogger("bruce.router")

Mask = npt.NDArray[np.bool_]


@kernel
def of_topics(topic: npt.NDArray[np.int32], topics: npt.NDArray[np.int64], rows: Mask) -> int:
    """Set `rows` bool[n] where a message is of one of `topics`, none meaning any; how many are."""
    count = 0
    for row in range(len(topic)):
        meant = len(topics) == 0
        for wanted in topics:
            meant |= topic[row] == wanted
        rows[row] = meant
        count += meant
    return count


@kernel
def with_key(
    data: npt.NDArray[np.uint8],
    key_at: npt.NDArray[np.int64],
    key_bytes: npt.NDArray[np.int32],
    key: npt.NDArray[np.uint8],
    rows: Mask,
) -> int:
    """Leave those of `rows` bool[n] set whose message has this key; how many are."""
    count = 0
    for row in range(len(rows)):
        if not rows[row]:
            continue
        at = 0
        if key_bytes[row] == len(key):
            while at < len(key) and data[key_at[row] + at] == key[at]:
                at += 1
        rows[row] = key_bytes[row] == len(key) and at == len(key)
        count += rows[row]
    return count


class Trace:
    """One trace that runs."""

    def __init__(self, ask: TraceRequest, path: Path, topics: Topics, pool: Pool) -> None:
        """Go on with the lines in `path`, or begin them. Raises NotOurs, OSError."""
        self.ask, self._pool = ask, pool
        self._topics = topics
        self._shared = [topics.others, topics.illegal]
        """Numbers of more than one name."""
        self._key = np.frombuffer(ask.key or b"", np.uint8)
        self._file = os.fdopen(append_own(path), "ab", buffering=0)
        self._left = ask.most_bytes - os.fstat(self._file.fileno()).st_size
        self._lines: list[bytes] = []
        self._followed: dict[int, int] = {}
        """Sequence -> the partition that it waits for or goes to, by flat number; -1 for none."""
        self._batch: tuple[Batch, Mask] | None = None
        self._tell("resumed" if self._left < ask.most_bytes else "began", None, token=ask.token)
        self.flush()

    @property
    def full(self) -> bool:
        """Whether its bytes are used up."""
        return self._left <= 0

    def note_read(self, batch: Batch, wanted: Mask) -> None:
        """A batch was read from the log; the rows that are `wanted` are neither resolved nor in flight."""
        rows, self._batch = np.zeros(len(batch), np.bool_), None
        # The table may have forgotten a name, and given its number to another.
        numbers = np.array([self._topics.number(name) for name in self.ask.topics], np.int64)
        if not of_topics(batch.topic, numbers, rows):
            return
        if self.ask.topics:
            for row in np.flatnonzero(rows & np.isin(batch.topic, self._shared)).tolist():
                rows[row] = batch.topic_name(row) in self.ask.topics
        if self.ask.key is not None and not with_key(
            batch.data, batch.key_at, batch.key_bytes, self._key, rows
        ):
            return
        self._batch = batch, rows
        # The second reader reads again what was acknowledged long ago.
        for row in np.flatnonzero(rows & wanted).tolist():
            if int(batch.sequence[row]) not in self._followed and not self.full:
                self._followed[int(batch.sequence[row])] = -1
                self._tell_received(batch, row)

    def note_placed(self, batch: Batch, chosen: npt.NDArray[np.int32], sent: Mask, wanted: Mask) -> None:
        """The wanted rows of the batch were given partitions (flat; -1: none), and some were sent."""
        if self._batch is None or self._batch[0] is not batch:
            return
        for row in np.flatnonzero(self._batch[1] & wanted).tolist():
            sequence, flat = int(batch.sequence[row]), int(chosen[row])
            before = self._followed.get(sequence)
            if before is None or self.full:
                continue
            partition = self._partition(flat)
            if flat >= 0 and flat != before:
                self._tell("routed", sequence, partition=partition)
            if sent[row]:
                self._tell("sent", sequence, partition=partition, broker=self._broker(flat))
            elif flat != before or flat < 0:
                self._tell("waits", sequence, partition=partition)
            self._followed[sequence] = flat

    def note_outcomes(self, outcomes: Outcomes) -> None:
        """The outcomes of messages that were sent."""
        for row in np.flatnonzero(self._mine(outcomes.sequence)).tolist():
            sequence, code = int(outcomes.sequence[row]), int(outcomes.code[row])
            partition = self._partition(int(outcomes.flat[row]))
            if code:
                self._tell("failed", sequence, partition=partition, error=name_of(code))
                continue
            now = datetime.now(UTC).timestamp()
            self._tell(
                "acknowledged",
                sequence,
                partition=partition,
                offset=int(outcomes.offset[row]),
                after_ms=round(1000 * now - int(outcomes.received_ns[row]) / 1e6, 1),
            )
            del self._followed[sequence]

    def note_discarded(self, sequences: npt.NDArray[np.int64], reason: int) -> None:
        """These were given up."""
        name, letter = reason_name(reason), bool(reason & DEAD_LETTERED)
        for sequence in sequences[self._mine(sequences)].tolist():
            self._tell("discarded", sequence, reason=name, dead_lettered=letter)
            del self._followed[sequence]

    def flush(self) -> None:
        """Write what was told. Raises OSError."""
        lines, self._lines = self._lines, []
        if lines:
            self._file.write(b"".join(lines))

    def end(self, why: str) -> None:
        """Tell why, and let go of the file. Raises OSError."""
        self._left = max(1, self._left)
        self._tell("ended", None, token=self.ask.token, why=why)
        self.flush()
        self._file.close()

    def leave(self) -> None:
        """Let go of the file, for a successor that goes on. Raises OSError."""
        self.flush()
        self._file.close()

    def _mine(self, sequences: npt.NDArray[np.int64]) -> Mask:
        followed = np.fromiter(self._followed, np.int64, len(self._followed))
        return np.isin(sequences, followed)

    def _partition(self, flat: int) -> int | None:
        return None if flat < 0 else self._pool.partitions.number(flat)

    def _broker(self, flat: int) -> int:
        return self._pool.brokers.id(self._pool.partitions.leader_of(flat))

    def _tell_received(self, batch: Batch, row: int) -> None:
        payload: dict[str, Any] = {}
        if self.ask.payload:
            payload = {**_text("key", batch.key(row)), **_text("value", batch.value(row))}
            payload["headers"] = [{"name": name, **_text("value", data)} for name, data in batch.headers(row)]
        self._tell(
            "received",
            int(batch.sequence[row]),
            int(batch.received_ns[row]),
            **_text("topic", batch.topic_name(row)),
            key_bytes=int(batch.key_bytes[row]),
            value_bytes=int(batch.value_bytes[row]),
            uid=int(batch.uid[row]),
            pid=int(batch.pid[row]),
            **payload,
        )

    def _tell(self, event: str, sequence: int | None, at_ns: int | None = None, **more: Any) -> None:
        if self.full:
            return
        now = datetime.now(UTC) if at_ns is None else datetime.fromtimestamp(at_ns / 1e9, UTC)
        which = {} if sequence is None else {"sequence": sequence}
        document = {"time": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "event": event, **which, **more}
        self._lines.append(json.dumps(document, ensure_ascii=False).encode() + b"\n")
        self._left -= len(self._lines[-1])


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes under a name, or in base64 under another."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


class Tracing:
    """Looks for requests, begins traces and ends them. For one thread."""

    def __init__(self, shared: Path, topics: Topics, pool: Pool) -> None:
        """`shared`: the shared one, beside which the files lie."""
        self._shared, self._topics, self._pool = shared, topics, pool
        self.current: Trace | None = None
        self._done = ""
        """The token of the last that came to its end."""

    def look(self) -> None:
        """Begin what is asked for, end what is over, write what was told."""
        ask = None
        try:
            ask = read_request(self._shared)
            if self.current is not None:
                self._go_on(self.current, ask)
            if self.current is None and ask is not None and ask.token != self._done and not ask.is_over():
                self.current = Trace(ask, events_path(self._shared), self._topics, self._pool)
                _log.info("a trace of single messages runs: brucectl trace has asked for it")
        except (NotOurs, OSError) as error:
            # A full tmpfs, or a file of somebody else's. Delivery goes on.
            _log.warning("no trace: %s", error)
            if ask is not None:
                self._done = ask.token
            self.current = None

    def _go_on(self, running: Trace, ask: TraceRequest | None) -> None:
        if ask is None or ask.token != running.ask.token:
            why = "it was stopped"
        elif running.ask.is_over():
            why = "its time is over"
        elif running.full:
            why = "its bytes are used up"
        else:
            running.flush()
            return
        self._done, self.current = running.ask.token, None
        running.end(why)
        _log.info("the trace has ended: %s", why)

    def leave(self) -> None:
        """Let go, for a successor that goes on."""
        if self.current is not None:
            with suppress(OSError):
                self.current.leave()
            self.current = None


def compile_kernels() -> None:
    """Compile what finds the messages that are followed."""
    data, numbers, words = np.zeros(0, np.uint8), np.zeros(0, np.int32), np.zeros(0, np.int64)
    rows = np.zeros(0, np.bool_)
    of_topics(numbers, words, rows)
    with_key(data, words, numbers, np.frombuffer(b"k", np.uint8), rows)
