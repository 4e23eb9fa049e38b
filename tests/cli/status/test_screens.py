"""`brucectl top`: rates between looks, a screen of any size, and a terminal that is restored at the end."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, ConsoleDimensions

from cli.status.figures import Look, Top
from cli.status.report import first_waiting
from cli.status.screens import screen, show_screen, some_brokers, sparkline
from spool.format.wire import encode
from status.report import BrokerView, RateView, Report, Watermarks
from tests.cli.program import run
from tests.daemon import PATIENCE_S, ROOT, RunningBruce
from tests.spool.fixture import SpoolFixture
from tests.status.test_health import HEALTHY, WELL
from tests.status.test_witness import spool, tier, view

CSI = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


def report(received: int, delivered: int, topics: dict[bytes, int], acked: int = 0, **more: object) -> Report:
    """A report with these totals, and a backlog of these topics."""
    snapshot = replace(
        WELL,
        received=received,
        delivered=delivered,
        backlog=sum(topics.values()),
        brokers=[BrokerView(1, "healthy", 5, 2, acked), BrokerView(2, "stalled", 5, 2, 0)],
    )
    return replace(HEALTHY, snapshot=snapshot, topics=tuple(topics.items()), **more)  # type: ignore[arg-type]


def after(*reports: Report, arrived: Counter[bytes] | None = None) -> Top:
    """The state after these reports, two seconds apart."""
    top = Top()
    for number, one in enumerate(reports):
        top.add(Look(2.0 * number, one, arrived or Counter()))
    return top


def shown(top: Top, width: int = 80, height: int = 24) -> list[str]:
    """The lines of a screen of this size."""
    console = Console(file=io.StringIO(), width=width, height=height, record=True, force_terminal=True)
    console.print(screen(top, ConsoleDimensions(width, height)))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_brokers_are_sorted_by_number() -> None:
    """Also where there is no room for all: then those that are well are left out."""
    brokers = [BrokerView(n, "stalled" if n in {2, 9} else "healthy", 5, 2, 0) for n in (10, 9, 2, 1)]
    snapshot = replace(WELL, brokers=brokers)
    assert [broker.id for broker in some_brokers(snapshot, 8)] == [1, 2, 9, 10]
    assert [broker.id for broker in some_brokers(snapshot, 3)] == [1, 2, 9]


def test_the_witness_is_a_fact() -> None:
    """`status` says the verdict on each tier; nothing without a witness."""

    def written(given: Report) -> str:
        file = io.StringIO()
        show_screen(given, [], Console(file=file, width=120, force_terminal=True, color_system=None))
        return file.getvalue()

    told = view(tier("main", spool(late=2)), tier("lake"), problem="the witness has stopped")
    seen = written(replace(HEALTHY, witness=told))
    assert re.search(
        r"^witness +main: 2 late \(40 judged\), lake: complete \(40 judged\)", seen, re.MULTILINE
    )
    assert "\nthe witness has stopped" in seen
    assert "witness" not in written(HEALTHY)


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("height", [5, 8, 10, 12, 24, 60])
def test_it_fits(width: int, height: int) -> None:
    """At any size, no line is too wide, the height is within its limit, and the keys come last."""
    topics = {b"topic-%02d-with-a-name-that-is-long" % n: 10**n for n in range(10)}
    top = after(report(0, 0, {}), report(10**9, 10**8, topics, 10**7), arrived=Counter(topics))
    lines = shown(top, width, height)
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= max(height, 9)
    assert lines[-1].startswith("q quit")
    assert height < 12 or any(line.startswith("topic-09") for line in lines)
    assert height < 24 or any(line.startswith("2 stalled") for line in lines)


LARGE = 9_876_543_210
"""A number of 10 digits, as a daemon has them after ten days of 10,000 messages a second."""


def large(topics: int, brokers: int) -> Report:
    """A report with numbers of 10 digits in each column, long names, and brokers that back off."""
    waiting = {b"%02d-topic-" % number + b"t" * 31: LARGE + number for number in range(topics)}
    more = report(LARGE, LARGE - 1, waiting)
    away = [BrokerView(10 + at, "backing_off", LARGE - 100 - at, 12_345, 9) for at in range(brokers)]
    rate = RateView(60, 12_345.6, 12_345.6, 0)
    marks = Watermarks(LARGE, LARGE, LARGE, LARGE - 2)
    snapshot = replace(more.snapshot, brokers=away, watermarks=marks, discarded={"short": LARGE})
    return replace(more, snapshot=snapshot, topics_estimated=True, minute=rate, quarter_hour=rate)


def assert_only_topics_are_cut(lines: list[str], width: int) -> None:
    """No other word than the first one of a topic's row ends in "…", and no line is too wide."""
    assert all(len(line) <= width for line in lines), lines
    for line in lines:
        if "…" in line:
            name, *others = line.split()
            assert re.fullmatch(r"\d\d-topic-t*…", name), line
            assert len(name) >= 10
            assert "…" not in "".join(others), line


@pytest.mark.parametrize("topics", [0, 3, 3_000])
@pytest.mark.parametrize("brokers", [0, 3, 30])
@pytest.mark.parametrize("width", [80, 100, 120])
def test_status_cuts_no_number(width: int, topics: int, brokers: int) -> None:
    """On the screen of `brucectl status`, numbers of 10 digits are whole; only names of topics are cut."""
    file = io.StringIO()
    given = large(topics, brokers)
    show_screen(given, [], Console(file=file, width=width, force_terminal=True, color_system=None))
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert_only_topics_are_cut(lines, width)
    words = " ".join(lines).split()
    for topic, count in given.topics[:8]:
        assert f"~{count:,}" in words, topic
    for broker in given.snapshot.brokers[:8]:
        assert {str(broker.id), "backing_off", "12,345", str(broker.offset)} <= {*words}
    assert {f"{LARGE:,}", f"{LARGE - 1:,}", "12,345.6"} <= {*words}
    assert any(line.startswith("a second, 15 min ") for line in lines)
    if topics == 3_000:
        assert "and 2,992 more" in " ".join(words)


def test_tables_are_beside_each_other_where_they_fit() -> None:
    """Names give way down to 10 cells; below that, brokers come below topics, and names are longer again."""

    def heads(width: int, name: int) -> list[str]:
        file = io.StringIO()
        many = replace(large(2, 2), topics=((b"t" * name, LARGE),))
        show_screen(many, [], Console(file=file, width=width, force_terminal=True, color_system=None))
        return [line for line in file.getvalue().splitlines() if line.startswith(("topic", "broker", "t"))]

    # The numbers and the space between: 10 + 2 + 14 of topics, 4, and 6 + 2 + 11 + 2 + 9 + 2 + 10 of brokers.
    head, name = heads(72, 40)
    assert head.split() == ["topic", "backlog", "broker", "state", "in", "flight", "waits", "from"]
    assert name.split()[0] == "t" * 9 + "…"
    head, name, below = heads(71, 40)
    assert (head.split(), below.split()[0]) == (["topic", "backlog"], "broker")
    assert name.split()[0] == "t" * 25 + "…"
    head, name = heads(71, 9)
    assert (len(head.split()), name.split()[0]) == (8, "t" * 9)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_top_cuts_no_number(width: int) -> None:
    """On the screen of `brucectl top`, numbers of 10 digits are whole; only names of topics are cut."""
    given = large(3, 3)
    empty = replace(given, topics=())
    top = after(empty, given, arrived=Counter(dict(given.topics)))
    lines = shown(top, width, 40)
    assert_only_topics_are_cut(lines, width)
    words = " ".join(lines).split()
    for _, count in given.topics:
        assert f"~{count:,}" in words
    for broker in given.snapshot.brokers:
        assert {str(broker.id), "backing_off", "12,345", str(broker.offset)} <= {*words}


def test_where_a_broker_waits_from() -> None:
    """The first message that waits for it, by number: three brokers are not behind by three backlogs."""
    lines = "\n".join(shown(after(report(9, 9, {}))))
    assert "waits from" in lines
    assert "behind" not in lines
    well = replace(HEALTHY.snapshot, brokers=[BrokerView(1, "healthy", 9, 0, 0)])
    assert first_waiting(well.brokers[0], well) is None
    assert first_waiting(BrokerView(1, "stalled", 5, 2, 0), well) == 5


def test_sparklines() -> None:
    """One character for each value, to the right, scaled to the highest; any non-zero value shows."""
    assert sparkline([0, 0.01, 3.5, 7], 6) == "   ▁▄▇"
    assert sparkline([7, 3, 1], 2) == "▃▁"
    assert sparkline([], 3) == "   "
    assert sparkline([0, 0], 2) == "  "


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=30))
def test_any_rates_make_a_line(rates: list[float]) -> None:
    """One character for each rate, whatever the rates are; the tallest character marks the highest rate."""
    line = sparkline(rates, 30)
    assert len(line) == 30
    assert line[30 - len(rates) :].rstrip(" ") == "" or line[30 - len(rates) + rates.index(max(rates))] == "▇"


def test_no_terminal(bruce_config: Path) -> None:
    """In a pipe: one sentence, exit code 2."""
    done = run("top", "--config", bruce_config)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("top needs a terminal")


@pytest.fixture
def bruce_config(tmp_path: Path) -> Path:
    """A configuration that is not read."""
    path = tmp_path / "bruce.toml"
    path.write_text("")
    return path


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    """A spool without a daemon."""
    spool = SpoolFixture(tmp_path)
    spool.fill(4)
    spool.step()
    spool.crash()
    return spool.layout.directory


class Terminal:
    """`brucectl top` on a terminal of 80 columns and 24 lines."""

    def __init__(self, spool: Path, environ: Mapping[str, str] = os.environ) -> None:
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = self.modes()
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from cli.app import brucectl; brucectl()", "top", "--spool", spool],
            cwd=ROOT,
            env={**environ, "TERM": "xterm-256color"},
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
        )
        self._data = b""

    def modes(self) -> list[object]:
        """The terminal's settings for typed input."""
        return termios.tcgetattr(self._slave)

    def frame(self) -> str:
        """The current screen."""
        while select.select([self._master], [], [], 0)[0]:
            self._data += os.read(self._master, 1 << 16)
        *_, last = self._data.rpartition(b"\x1b[H")
        return CSI.sub(b"", last).decode(errors="replace")

    def await_frame(self, condition: Callable[[str], bool]) -> str:
        """The first screen that meets the condition."""
        end = time.monotonic() + PATIENCE_S
        while not condition(frame := self.frame()):
            assert time.monotonic() < end, frame
            assert self.process.poll() is None, frame
            time.sleep(0.02)
        return frame

    def press(self, keys: bytes) -> None:
        """Type these keys."""
        os.write(self._master, keys)

    def end(self) -> int:
        """Wait for the end; returns the exit code."""
        code = self.process.wait(PATIENCE_S)
        self.frame()
        return code

    @property
    def data(self) -> bytes:
        """Everything that was written to the terminal."""
        return self._data

    def close(self) -> None:
        """Close the terminal."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


def test_on_a_terminal(bruce: RunningBruce) -> None:
    """Rates move while messages come; keys sort, pause and end; the terminal is then restored."""
    terminal = Terminal(bruce.spool, bruce.environ)
    try:
        terminal.await_frame(lambda frame: "q quit" in frame)

        def sends(words: str) -> Callable[[str], bool]:
            def look(frame: str) -> bool:
                bruce.send([encode(b"t", b"v")] * 20)
                return words in frame and bool(re.search(r"^t +[\d,]+ +[1-9]", frame, re.MULTILINE))

            return look

        frame = terminal.await_frame(sends("(by rate)"))
        assert "healthy" in frame
        terminal.press(b"n")
        terminal.await_frame(sends("(by name)"))
        terminal.press(b"b")
        terminal.await_frame(sends("(by backlog)"))
        terminal.press(b"p")
        terminal.await_frame(lambda frame: "PAUSED" in frame)
        terminal.press(b"p")
        terminal.await_frame(lambda frame: "PAUSED" not in frame and "q quit" in frame)
        assert terminal.modes() != terminal.before
        terminal.press(b"q")
        assert terminal.end() == 0
        assert terminal.modes() == terminal.before
        assert b"\x1b[?1049l" in terminal.data
        assert b"Traceback" not in terminal.data
    finally:
        terminal.close()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)], ids=["ctrl-c", "told to end"]
)
def test_it_is_ended(dead: Path, number: signal.Signals, code: int) -> None:
    """After any kind of end, the terminal is restored, and off the other screen."""
    terminal = Terminal(dead)
    try:
        terminal.await_frame(lambda frame: "q quit" in frame)
        terminal.process.send_signal(number)
        assert terminal.end() == code
        assert terminal.modes() == terminal.before
        assert b"\x1b[?1049l" in terminal.data
        assert b"Traceback" not in terminal.data
    finally:
        terminal.close()


def test_an_error_on_the_way(dead: Path) -> None:
    """If the spool disappears, top ends with a sentence, on a restored terminal."""
    terminal = Terminal(dead)
    try:
        terminal.await_frame(lambda frame: "no daemon is running" in frame)
        dead.rename(dead.with_name("gone"))
        assert terminal.end() == 3
        assert terminal.modes() == terminal.before
        assert b"holds no spool" in terminal.data.split(b"\x1b[?1049l")[-1]
    finally:
        terminal.close()
