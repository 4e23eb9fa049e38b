"""One run of tools/bench: its directory, its repetitions, and the processes that it starts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spool.shared.state import Field
from tools.bruce_process import NOWHERE, Bruce
from tools.load import LoadOptions
from tools.load_process import run_load
from tools.targets import Embedded, Real, Target
from tools.waiting import wait_until

TOPIC = "load"
WARM_UP = 20_000
_ROOM_BYTES = 64 << 30


@dataclass(frozen=True, slots=True)
class Bench:
    """The settings and resources of a run."""

    directory: Path
    """Large files are made and removed below it."""
    repeat: int = 3
    scale: float = 1.0
    """Of every count: 0.01 shows that a bench works, and measures nothing."""

    @property
    def programs(self) -> Path:
        """Compiled C programs."""
        return self.directory / "programs"

    def scaled(self, count: float) -> int:
        """A count, at the scale of this run."""
        return max(1, int(count * self.scale))

    @contextmanager
    def bruce(
        self,
        servers: str = NOWHERE,
        *,
        settings: Mapping[str, Mapping[str, object]] | None = None,
        inputs: Sequence[Mapping[str, object]] = (),
        place: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Iterator[Bruce]:
        """A daemon with an empty spool, not started; its files are gone afterwards."""
        directory = place or self.directory / "bruce"
        shutil.rmtree(directory, ignore_errors=True)
        # Every message of the load has a key of its own; by `any` they go out as the C program sends them.
        merged: dict[str, Mapping[str, object]] = {
            "spool": {"max_bytes": _ROOM_BYTES},
            "dispatch": {"partitioner": "any"},
            **(settings or {}),
        }
        try:
            with Bruce(directory, servers, settings=merged, inputs=inputs, environ=environ) as bruce:
                yield bruce
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def kafka(self, kind: str, *, brokers: int, partitions: int) -> Target:
        """`embedded` or `real`, with the topic that benches use; not started."""
        topics = {TOPIC: partitions}
        if kind == "embedded":
            return Embedded(brokers, topics)
        return Real(self.directory / "kafka", brokers, topics)


def accept(bruce: Bruce, options: LoadOptions, timeout_s: float = 600.0) -> dict[str, Any]:
    """Send a load and wait until all of it is written: the report of the senders."""
    before = bruce.word(Field.WRITTEN_SEQUENCE)
    report = run_load(options, timeout_s)
    wait_until(
        lambda: bruce.word(Field.WRITTEN_SEQUENCE) >= before + report["sent"],
        60,
        "all that was sent to be written",
        pause_s=0.001,
    )
    return report


def warm_up(bruce: Bruce) -> None:
    """Run everything once."""
    accept(bruce, LoadOptions(bruce.socket, count=WARM_UP))


def await_delivered(bruce: Bruce, timeout_s: float) -> None:
    """Wait until everything that is written is delivered, and marked so."""
    wait_until(
        lambda: bruce.word(Field.LOW_WATERMARK) >= bruce.word(Field.WRITTEN_SEQUENCE) > 0,
        timeout_s,
        "the backlog to go",
    )


def use_processors(count: int) -> None:
    """Run on the first processors only, with all processes started from here."""
    if count:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
