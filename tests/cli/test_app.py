"""Every command of bruce and brucectl: help, JSON, and how it ends when it cannot go on."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer.main

from cli import app
from cli.terminal import errors
from spool.format.wire import Reason, encode
from spool.layout import Layout
from tests.cli.program import Ended, run
from tests.spool.fixture import SpoolFixture
from tools.command_pages import commands
from tools.gen_man import PAGES

COMMANDS = {
    called: command
    for name, application in (("bruce", app.daemon), ("brucectl", app.control))
    for called, command in commands(typer.main.get_command(application), name)
}
NAMES = list(COMMANDS)
WITHOUT_JSON = {
    "bruce run": "prints nothing",
    "bruce compile": "prints nothing",
    "bruce hold-socket": "prints nothing",
    "brucectl send": "prints nothing",
    "brucectl inspect export": "prints JSON lines, or datagrams, and nothing else",
    "brucectl query": "--form json",
    "brucectl spark query": "--form json",
    "brucectl top": "is for people; programs have status",
    "brucectl witness run": "writes witness.json in its directory",
    "brucectl spark witness": "does so, too",
}
"""Commands without JSON, with the reason."""
LINES = ("brucectl inspect frames", "brucectl inspect records", "brucectl inspect find", "brucectl trace")
"""They print one object per line, which has no version."""
MAPS = ("topics", "refused", "discarded", "dropped", "spools")
"""By name, uuid or reason: their keys are data."""
NEEDED = {
    "brucectl send": ["--topic", "t", "v"],
    "brucectl replay": ["--from", "0"],
    "brucectl drain": ["--timeout", "0"],
    "brucectl trace": ["--topic", "t"],
    "brucectl inspect show": ["0"],
    "brucectl inspect find": ["v"],
    "brucectl inspect carve": ["/dev/null"],
    "brucectl archive": ["--to", "/nowhere"],
    "brucectl config convert": ["/dev/null"],
    "brucectl spark archive": ["--to", "/nowhere"],
    "brucectl query": ["SELECT 1"],
    "brucectl spark query": ["SELECT 1"],
    "brucectl spark replay": ["--from", "0"],
}
"""Arguments without which a command cannot begin."""
KAFKA = {"BRUCE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
ON_TERMINALS = ("brucectl top",)
"""They end at once without a terminal."""
ON_SPOOLS = [
    called
    for called, command in COMMANDS.items()
    if any("--spool" in p.opts for p in command.params) and called not in ON_TERMINALS
]
ON_DAEMONS = ("brucectl trace",)
"""They end at once without a daemon."""
SHOWN = [called for called in ON_SPOOLS if called not in ("brucectl drain", *ON_DAEMONS)]
SHOWN += ["brucectl config show"]
"""Commands that print something of a spool that has messages, without a Kafka."""
TOPICS_SHOWN = [
    *("brucectl status", "brucectl discards", "brucectl replay"),
    *(f"brucectl inspect {name}" for name in ("segments", "records", "find", "show")),
]
"""Commands that show names of topics to people."""
NAMES_OF_TOPICS = {
    "escape": (b"a\x1b[31mb", "a\\x1b[31mb"),
    "tab": (b"a\tb", "a\\tb"),
    "newline": (b"a\nb", "a\\nb"),
    "long": (b"t" * 32_767, ""),
}
"""By what is odd about it: the name of a topic, and how it is shown ("": that depends on the command)."""
NOBODY = 65534


@pytest.fixture(scope="module")
def spool() -> Iterator[Path]:
    """A spool with messages, sealed segments and a refused datagram, which no process has open."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as name:
        spool = SpoolFixture(Path(name))
        spool.fill(60)
        spool.writer.append([encode(b"t0", b"v")], refused={1: (2, b"short")})
        spool.stop()
        yield spool.options.directory


@pytest.fixture(scope="module", params=NAMES_OF_TOPICS.values(), ids=NAMES_OF_TOPICS)
def odd_topic(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """A topic as it is shown, and a spool with a message and a discard of it, which no process has open."""
    topic, shown = request.param
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as name:
        spool = SpoolFixture(Path(name), segment_bytes=256 << 10)
        datagram = encode(topic, b"v")
        spool.writer.append([datagram], refused={Reason.OVER_QUOTA: (2, datagram)})
        spool.stop()
        yield shown, spool.options.directory


def call(called: str, *more: object, environ: dict[str, str] | None = None) -> Ended:
    """Call a command with the arguments that it requires, and more."""
    program, *words = called.split()
    arguments = [*words, *NEEDED.get(called, []), *more]
    return run(*arguments, environ={**KAFKA, **(environ or {})}, program=getattr(app, program))


def assert_refused(done: Ended, *codes: int) -> None:
    """The command ended with one of these codes, and printed the reason in one sentence."""
    assert done.returncode in codes, done
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr


def numbers_of(called: str) -> list[str]:
    """The options of a command that take a number."""
    return [p.opts[0] for p in COMMANDS[called].params if p.type_descriptor.annotation in (int, float)]


@pytest.mark.parametrize("called", NAMES)
def test_help(called: str) -> None:
    """The help is narrow and plain in a pipe, at any width of the terminal that started it."""
    done = call(called, "--help", environ={"COLUMNS": "300"})
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout
    assert f"Usage: {called} " in done.stdout
    assert "\n  Examples:\n" in done.stdout


@pytest.mark.parametrize("group", sorted({called.rpartition(" ")[0] for called in NAMES}))
@pytest.mark.parametrize("columns", ["40", "80"])
def test_no_summary_is_cut(group: str, columns: str) -> None:
    """The help of a program, or of a group of commands, has the whole first sentence of each command."""
    done = call(group, "--help", environ={"COLUMNS": columns})
    listed = " ".join(done.stdout.partition("\nCommands:\n")[2].split())
    assert (done.returncode, done.stderr) == (0, "")
    assert "..." not in listed
    for called, command in COMMANDS.items():
        if called.rpartition(" ")[0] == group:
            sentence, _, _ = " ".join(command.help.split()).partition(". ")
            assert sentence.rstrip(".") in listed


@pytest.mark.parametrize("called", NAMES)
def test_json_is_there_and_described(called: str) -> None:
    """Every command prints JSON for programs, or is listed above; bruce-json(5) has its shape."""
    there = any("--json" in parameter.opts for parameter in COMMANDS[called].params)
    assert there == (called not in WITHOUT_JSON)
    if there:
        assert section(called)
        assert called in LINES or re.search(r"version\W+[12]\b", section(called))


def section(called: str) -> str:
    """The part of bruce-json(5) that describes a command."""
    page = PAGES["bruce-json.5"]().replace("\\-", "-").replace("\\fB", "").replace("\\fR", "")
    return page.partition(f".SH {called}\n")[2].partition("\n.SH ")[0]


@pytest.mark.parametrize("called", [c for c in ON_SPOOLS if c not in (*WITHOUT_JSON, *ON_DAEMONS)])
def test_json_is_what_is_described(called: str, spool: Path) -> None:
    """Every key that is printed is described in the man page; a document has its version."""
    done = call(called, "--json", "--spool", spool)
    assert "\x1b" not in done.stdout
    if called in LINES:
        documents = [json.loads(line) for line in done.stdout.splitlines()]
        described = section("brucectl inspect records") + section(called)
    else:
        documents, described = [json.loads(done.stdout)], section(called)
        if called == "brucectl inspect show":
            described += section("brucectl inspect records")
        assert "version" in documents[0]
    assert documents
    words = set(re.findall(r"\w+", described))
    assert set().union(*map(keys, documents)) - words == set()


def keys(value: Any) -> set[str]:
    """The keys of all objects in a document, except those objects whose keys are data."""
    if isinstance(value, list):
        return set().union(*map(keys, value))
    if not isinstance(value, dict):
        return set()
    inner = [keys(v) for k, v in value.items() if not (k in MAPS and isinstance(v, dict))]
    return set(value).union(*inner)


@pytest.mark.parametrize("called", TOPICS_SHOWN)
def test_a_topic_commands_no_terminal(called: str, odd_topic: tuple[str, Path]) -> None:
    """Control characters are shown as text, on one line; of a name of 32,767 bytes at most 249 are shown.

    `status` sums up all that no topic of Kafka can be called.
    """
    shown, spool = odd_topic
    done = call(called, "--spool", spool)
    wanted = ("(illegal)", "(others)") if called == "brucectl status" else (shown,)
    assert any(one in done.stdout for one in wanted)
    assert all(raw not in done.stdout + done.stderr for raw in ("\x1b", "a\tb", "a\nb", "t" * 250))


@pytest.mark.parametrize("called", NAMES)
def test_an_unknown_option(called: str) -> None:
    """The option is refused in one sentence that names it."""
    done = call(called, "--no-such-option")
    assert_refused(done, errors.USAGE)
    assert f"{called}: No such option: --no-such-option" in done.stderr


@pytest.mark.parametrize("called", NAMES)
def test_numbers_that_are_none(called: str) -> None:
    """Text that is no number, or too large a number."""
    for option in filter(lambda name: name.startswith("--"), numbers_of(called)):
        for garbage in ("abc", "", "\udcff", "0x10"):
            assert_refused(call(called, option, garbage), errors.USAGE)


@pytest.mark.parametrize("called", ON_SPOOLS)
def test_values_out_of_range(called: str, spool: Path) -> None:
    """Numbers of 30 digits and impossible positions cause no traceback."""
    wide = {"--limit": "9" * 30, "--samples": "9" * 30, "--from": "9" * 30, "--to": "x\udcff", "--step": "0s"}
    for option in wide.keys() & {o for p in COMMANDS[called].params for o in p.opts}:
        done = call(called, option, wide[option], "--spool", spool)
        assert done.returncode in errors.MEANINGS, done
        if done.returncode == errors.USAGE:
            assert_refused(done, errors.USAGE)


@pytest.mark.parametrize("called", NAMES)
def test_a_configuration_that_is_not_there(called: str, tmp_path: Path) -> None:
    """The file is named; the doctor reports it among other findings."""
    if not any("--config" in parameter.opts for parameter in COMMANDS[called].params):
        pytest.skip("it has no configuration")
    if called in ("brucectl doctor", *ON_TERMINALS):
        pytest.skip("it is a finding there, or not come to")
    done = call(called, "--config", tmp_path / "none.toml")
    assert_refused(done, errors.USAGE)
    assert f"{tmp_path / 'none.toml'}: cannot be read" in done.stderr


@pytest.mark.parametrize("called", ON_SPOOLS)
def test_a_spool_that_is_none(called: str, tmp_path: Path) -> None:
    """A missing directory, an empty one, and a file; none of them is changed."""
    empty, file = tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.touch()
    for place, codes in (
        (tmp_path / "none", [errors.UNREACHABLE]),
        (empty, [errors.UNREACHABLE]),
        (file, [errors.USAGE, errors.UNREACHABLE]),
    ):
        done = call(called, "--spool", place)
        assert_refused(done, *codes)
        assert str(place) in done.stderr
    assert sorted(tmp_path.rglob("*")) == [empty, file]


@pytest.mark.parametrize("called", [called for called in SHOWN if called in ON_SPOOLS])
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_spool_whose_name_is_no_text(called: str, more: list[str], spool: Path, tmp_path: Path) -> None:
    """The spool works like any other: the same exit code, the same number of lines."""
    if more and called in WITHOUT_JSON:
        pytest.skip("it prints no JSON")
    odd = tmp_path / os.fsdecode(b"spool \xff\xfe")
    shutil.copytree(spool, odd)
    here, there = (call(called, *more, "--spool", place) for place in (spool, odd))
    assert (there.returncode, there.stdout.count("\n")) == (here.returncode, here.stdout.count("\n")), there
    assert "Traceback" not in there.stderr


@pytest.mark.parametrize("called", [called for called in SHOWN if called in ON_SPOOLS])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_no_file_where_a_segment_should_be(
    called: str, make: Callable[[Path], None], spool: Path, tmp_path: Path
) -> None:
    """It is skipped, and nothing waits for it; verify, repair and status name it, and exit with 1."""
    odd = tmp_path / "spool"
    shutil.copytree(spool, odd)
    stranger = Layout(odd).segment(5)
    make(stranger)
    before, done = call(called, "--spool", spool), call(called, "--spool", odd)
    if called in ("brucectl status", "brucectl inspect verify", "brucectl inspect repair"):
        assert done.returncode == errors.FOUND
        assert stranger.name in done.stdout
    else:
        expected = before.stdout.replace(str(spool), str(odd))
        assert (done.returncode, done.stdout) == (before.returncode, expected)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("called", ON_SPOOLS)
def test_a_spool_that_this_user_may_not_read(called: str, spool: Path) -> None:
    """The spool is named, with the reason."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    call(called, "--spool", spool / "none")  # modules that another user may not be able to import
    os.seteuid(NOBODY)
    try:
        done = call(called, "--spool", spool, environ={"HOME": "/nonexistent"})
    finally:
        os.seteuid(0)
    assert_refused(done, errors.FOUND, errors.USAGE, errors.UNREACHABLE)
    assert "Permission denied" in done.stderr


@pytest.mark.parametrize("called", SHOWN)
@pytest.mark.parametrize("buffered", [True, False])
def test_an_output_that_takes_nothing(called: str, spool: Path, *, buffered: bool) -> None:
    """A full disk is one sentence; a reader that closes the pipe gets none."""
    more = ["--spool", spool] if called in ON_SPOOLS else []
    full = os.open("/dev/full", os.O_WRONLY)
    code, said = printing_to(full, called, *more, buffered=buffered)
    assert (code, said[-1]) == (
        errors.UNFINISHED,
        "standard output cannot be written: No space left on device",
    )
    reader, closed = os.pipe()
    os.close(reader)
    with mock.patch("cli.terminal.program.end_without_reader") as died:
        assert printing_to(closed, called, *more, buffered=buffered) == (errors.NO_READER, said[:-1])
    died.assert_called_once_with()


def printing_to(fd: int, called: str, *more: object, buffered: bool) -> tuple[int, list[str]]:
    """(exit code, lines of complaints) of a command that prints to a descriptor, which is closed."""
    binary = os.fdopen(fd, "wb", buffering=-1 if buffered else 0)
    out, err = io.TextIOWrapper(binary, write_through=not buffered), io.StringIO()
    _, *words = called.split()
    arguments = ["brucectl", *words, *NEEDED.get(called, []), *map(str, more)]
    with (
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "argv", arguments),
        mock.patch.dict(os.environ, KAFKA),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        app.brucectl()
    out.close()  # raises if buffered output cannot be written
    assert isinstance(ended.value.code, int)
    return ended.value.code, err.getvalue().splitlines()


@pytest.mark.parametrize(
    ("tail", "said"), [("| head -1", ""), ("> /dev/full", "standard output cannot be written")]
)
def test_a_process_of_its_own(spool: Path, tail: str, said: str) -> None:
    """The interpreter prints nothing more at its end."""
    program = f"{sys.executable} -c 'from cli.app import brucectl; brucectl()'"
    for more in ("inspect records --json", "status"):
        done = subprocess.run(
            ["bash", "-c", f"{program} {more} --spool {spool} {tail}"],
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.stderr.startswith(said)
        assert done.stderr.count("\n") == bool(said), done.stderr


def test_a_terminal_without_unicode(spool: Path) -> None:
    """The terminal gets escapes, and no error."""
    program = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]
    done = subprocess.run(
        [*program, "inspect", "timeline", "--spool", spool],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
