"""Actions of operators: files that they copy, functions and commands that they run, the clock."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from spool.format.wire import encode
from spool.layout import Layout
from tools.adversaries import planting
from tools.adversaries.attack import Attack, Flood, Settings
from tools.adversaries.partitioner import UNBEARABLE
from tools.adversaries.villain import DONE, Words
from tools.bruce_process import ROOT
from tools.waiting import wait_until

if TYPE_CHECKING:
    from tools.adversaries.arena import Arena

_ROUND = 100
COMMAND_S, COUNT_S = 60.0, 60.0
BOMBS, BLOCKS = 16, 4096
MOST_MIB = 640.0
"""The 256 that a reader unpacks, and the memory that it has without them."""
_LOOK_S = 0.005


def brucectl(*arguments: str) -> list[str]:
    """The command line of brucectl."""
    return [sys.executable, "-c", "from cli.app import brucectl; brucectl()", *arguments]


def environ_of(arena: Arena, **more: str) -> dict[str, str]:
    """The environment of a command beside the daemon."""
    environ = {**arena.bruce.environ, "BRUCE_CONFIG": str(arena.bruce.config), **more}
    environ.pop("LD_PRELOAD", None)
    return environ


class PackedBomb(Attack):
    """A copied spool with 16 packed segments of 280 KiB that hold 4 GiB each, and commands that read it.

    Each ends by itself with a sentence, none has more than 640 MiB at any moment, and the daemon goes on.
    """

    name = "packed-bomb"
    timed = False

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        del stack
        self._copy, spool, self._turn = arena.directory / "copy", uuid.uuid4(), 0
        layout = Layout(self._copy)
        layout.segments.mkdir(parents=True)
        (self._copy / "identity").write_text(f"{spool}\n")
        for number in range(1, BOMBS + 1):
            bomb = planting.packed_bomb(spool.bytes, number, BLOCKS)
            layout.segment(number - 1).write_bytes(bomb)

    def step(self, arena: Arena) -> None:
        """Run the next command."""
        looks = (
            (["inspect", "verify"], (1,), "damage"),
            (["status"], (0, 1), "received"),
            (["inspect", "find", "x"], (0, 1), ""),
        )
        words, codes, sentence = looks[self._turn % len(looks)]
        self._turn += 1
        shown = f"brucectl {' '.join(words)}, of a packed bomb,"
        code, said, mib = _measured(
            brucectl(*words, "--spool", str(self._copy)), environ_of(arena), self._copy
        )
        if mib > MOST_MIB:
            arena.report(f"{shown} has {mib:.0f} MiB, bound {MOST_MIB:.0f}")
        elif code not in codes or sentence not in said or "Traceback" in said:
            arena.report(f"{shown} exits {code}: {said[-300:]}")


def _measured(command: Sequence[str], environ: dict[str, str], directory: Path) -> tuple[int, str, float]:
    """(exit code, all that it printed, MiB at its peak); killed when it has far too much."""
    end, most = time.monotonic() + COMMAND_S, 0.0
    with (directory / "said").open("w+") as said:
        with subprocess.Popen(command, env=environ, stdout=said, stderr=said) as process:
            while process.poll() is None:
                with contextlib.suppress(OSError):
                    most = max(most, held_mib(process.pid))
                if most > 2 * MOST_MIB or time.monotonic() > end:
                    process.kill()
                time.sleep(_LOOK_S)
        said.seek(0)
        return process.returncode, said.read(), most


def held_mib(pid: int) -> float:
    """Memory of a process, and of the files in memory that it has open."""
    held = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            held += 1024 * int(line.split()[1])
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(fd).startswith("/memfd:"):
                held += 512 * fd.stat().st_blocks
    return held / (1 << 20)


class RaisingPartitioner(Flood):
    """Messages for which the user's own partitioner raises: each is given up and counted, and no other.

    The delivery worker goes on, and honest messages arrive in Kafka as soon as beside good ones of that
    topic.
    """

    name = "raising-partitioner"
    settings: ClassVar[Settings] = {
        "topics.flood": {"partitioner": "tools.adversaries.partitioner:choose"},
    }
    rate = 2_000

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del words, number
        return [encode(b"flood", b"v" * 100, key=UNBEARABLE)] * _ROUND

    def judge(self, arena: Arena) -> None:
        """Check that as many are discarded for this reason as were sent."""
        sent = sum(int(villain.words[DONE]) for villain in arena.villains)

        def discarded() -> int:
            return int(arena.bruce.status()["discarded"].get("partitioner", 0))

        wait_until(lambda: discarded() >= sent, COUNT_S, f"{sent} messages to be given up", pause_s=0.5)
        if (count := discarded()) != sent or not sent:
            arena.report(
                f"{sent} messages have a key that no partitioner bears, and {count} are given up for it"
            )


class KilledReplay(Attack):
    """`brucectl replay` dies when all is sent, before or after it reports that: a rerun sends nothing twice.

    It sends to a topic of its own, which must not grow any more.
    """

    name = "killed-replay"
    timed = False
    settings: ClassVar[Settings] = {"spool": {"keep_delivered_bytes": 1 << 30}}
    MESSAGES: ClassVar[int] = 500
    POINTS: ClassVar[tuple[str, ...]] = ("replay.sent", "replay.told")

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        del stack
        self._sent = False
        self._points = arena.directory / "points"

    def step(self, arena: Arena) -> None:
        """Send messages; once they are delivered, replay them, with a kill at the end each time."""
        if self._sent:
            time.sleep(0.1)
            return
        self._sent = True
        arena.send([encode(b"flood", b"once %d" % number) for number in range(self.MESSAGES)])
        wait_until(lambda: arena.count_of("flood") >= self.MESSAGES, COUNT_S, "messages to replay")
        for point in self.POINTS:
            self._points.write_text(f"{point}\n")
            if (code := self._replay(arena, BRUCE_CRASH_POINTS=str(self._points))) != -signal.SIGKILL:
                arena.report(f"the replay did not die at {point}: it exits {code}")
            before = arena.count_of("f")
            if (code := self._replay(arena)) != 0:
                arena.report(f"the replay that died at {point} exits {code} when it is started again")
            if more := arena.count_of("f") - before:
                arena.report(
                    f"the replay that died at {point} sends {more} messages when it is started again"
                )

    def _replay(self, arena: Arena, **environ: str) -> int:
        command = brucectl("replay", "--from", "0", "--topic", "flood", "--to-topic", "f", "--yes", "--json")
        command.append("--at-least-once")
        environ = environ_of(arena, **environ)
        return subprocess.run(
            command, env=environ, cwd=ROOT, timeout=COMMAND_S, check=False, capture_output=True
        ).returncode


class WallClock(Attack):
    """The time of day is set, back and forth, by hours, a day and a year, while the daemon runs.

    Only times for people depend on it: nothing is lost, held back or dropped, and syncs go on.
    """

    name = "wall-clock"
    clock = True
    _SETS = (3 * 3_600, -3 * 3_600, 86_400, -86_400, 365 * 86_400, -365 * 86_400, 0)
    """Seconds from the true time."""

    def __init__(self) -> None:
        self._number = 0

    def step(self, arena: Arena) -> None:
        """Set it once more."""
        time.sleep(1.5)
        arena.clock_words[1] = self._SETS[self._number % len(self._SETS)]
        self._number += 1
