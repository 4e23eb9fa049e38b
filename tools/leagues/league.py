"""Every case for every peer, one after the other, on one cluster of three real brokers."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.benches.filesystem import mounted
from tools.benches.machine import Skipped
from tools.kafka_cluster import KafkaError
from tools.leagues.arrivals import Arrivals
from tools.leagues.cases import CASES, LARGE_BYTES, Case
from tools.leagues.match import VALUE_BYTES, Match, Row, Watch
from tools.leagues.peer import Peer, Setting
from tools.leagues.programs import (
    Blocking,
    Collector,
    Ours,
    Rsyslog,
    RsyslogDisk,
    SyslogNg,
    SyslogNgSync,
    Unheld,
)
from tools.targets import Real
from tools.waiting import TookTooLong

PEERS: dict[str, type[Peer]] = {
    peer.name: peer
    for peer in (Ours, Unheld, Blocking, Rsyslog, RsyslogDisk, SyslogNg, SyslogNgSync, Collector)
}
OURS = (Ours.name, Unheld.name, Blocking.name)
EXACT = (Ours.name, Blocking.name)
"""They may lose nothing that they do not count."""
BROKERS = 3
DISK_BYTES = 1 << 30
_HEADINGS = (
    "accepted", "arrived", "lost", "doubled", "out of order", "it waits", "it counts", "UNCOUNTED",
    "CPU s", "PSS MB", "s",
)  # fmt: skip
FAILURES = (TookTooLong, RuntimeError, KafkaError, OSError)


class League:
    """One run of the league."""

    def __init__(self, directory: Path, count: int) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self.directory, self.count = directory, count
        self.rows: dict[str, list[Row]] = {}
        self.versions: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self.faults: list[str] = []

    def run(self, peers: Sequence[str], cases: Sequence[str]) -> None:
        """Play, and show each case when it is done. Raises KafkaMissing."""
        with Real(self.directory / "kafka", BROKERS, {}, auto_create=False) as kafka:
            if set(peers) & set(OURS):
                self._compile(kafka)
            for case in cases:
                for name in peers:
                    if case in (PEERS[name].cases or CASES) and name not in self.missing:
                        self._play(kafka, case, name)
                show(f"{case}: {CASES[case].text}", self.rows.get(case, []))
                self._save()

    def _compile(self, kafka: Real) -> None:
        """Start bruce once: the first start of a checkout compiles, which counts for no case."""
        place = self.directory / "first"
        place.mkdir()
        with Ours(Setting(place, place / "disk", kafka.bootstrap, "first", "second")) as peer:
            peer.start()
            peer.stop()

    def _play(self, kafka: Real, case: str, name: str) -> None:
        try:
            row = self._match(kafka, case, name)
        except Skipped as reason:
            self.missing[name] = str(reason)
            print(f"{name}: skipped: {reason}", flush=True)
        except FAILURES as error:
            self._fault(name, f"{name} in {case} did not come to its end: {error}")
            kafka.start_all()
        else:
            self.rows.setdefault(case, []).append(row)
            if name in EXACT and row.uncounted:
                self._fault(name, f"{name} in {case}: {row.uncounted} messages are lost and not counted")

    def _fault(self, name: str, text: str) -> None:
        print(text, flush=True)
        if name in OURS:
            self.faults.append(text)

    def _match(self, kafka: Real, case: str, name: str) -> Row:
        """One peer in one case. Raises Skipped, and FAILURES."""
        what = CASES[case]
        topic = f"{case}-{name}"
        with (
            self._place(what, topic) as (place, disk),
            PEERS[name](Setting(place, disk, kafka.bootstrap, topic, f"{topic}-unknown", what.small)) as peer,
        ):
            self._introduce(peer)
            kafka.create({topic: 1})
            with Arrivals(kafka.bootstrap, topic) as arrivals, Watch(peer) as watch:
                peer.start()
                began = time.monotonic()
                size = LARGE_BYTES if what.small else VALUE_BYTES
                match = Match(peer, kafka, self.count, arrivals, size)
                match.warm_up()
                what.script(match)
                match.settle()
                watch.look()
                return match.judge(watch, began)

    @contextmanager
    def _place(self, case: Case, name: str) -> Iterator[tuple[Path, Path]]:
        """Empty directories for a peer's files and for its queues. Raises Skipped."""
        place = self.directory / name
        place.mkdir()
        with contextlib.ExitStack() as stack:
            disk = place / "disk"
            if case.small:
                stack.enter_context(mounted(self.directory / "image", disk, DISK_BYTES))
            disk.mkdir(exist_ok=True)
            yield place, disk
        # Logs and configuration stay.
        shutil.rmtree(place / "disk", ignore_errors=True)

    def _introduce(self, peer: Peer) -> None:
        """Print version and configuration of a peer, once."""
        if peer.name not in self.versions:
            self.versions[peer.name] = peer.version()
            print(f"{peer.name}: {peer.version()}; {peer.remark}; {peer.configuration()}", flush=True)

    def _save(self) -> None:
        found: dict[str, Any] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "machine": {"processors": os.cpu_count(), "kernel": platform.release()},
            "count": self.count,
            "versions": self.versions,
            "missing": self.missing,
            "rows": {
                case: [{**asdict(row), "lost": row.lost, "uncounted": row.uncounted} for row in rows]
                for case, rows in self.rows.items()
            },
        }
        (self.directory / "results.json").write_text(json.dumps(found, indent=2) + "\n")


def show(title: str, rows: Sequence[Row]) -> None:
    """Print one table, and the remarks under it."""
    table = [("", *_HEADINGS), *((row.peer, *row.cells()) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print(f"\n{title}")
    for first, *rest in table:
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True))]
        print("  " + "  ".join(cells).rstrip())
    for row in rows:
        if row.remark:
            print(f"  {row.peer}: {row.remark}")
    print(end="", flush=True)
