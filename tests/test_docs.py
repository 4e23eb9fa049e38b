"""Help and manual pages: complete, and current."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import typer.main

from cli import app
from cli.settings import TABLES
from tools.gen_man import PAGES, ROOT, commands, stale
from tools.roff import document, escape

COMMANDS = [
    pytest.param(called, command, id=called)
    for name, application in (("bruce", app.daemon), ("brucectl", app.control))
    for called, command in commands(typer.main.get_command(application), name)
]


def test_manual_pages_are_current() -> None:
    """man/ holds what the sources say; `python -m tools.gen_man` writes it."""
    assert stale(ROOT / "man") == []


@pytest.mark.parametrize(("called", "command"), COMMANDS)
def test_every_command_has_help_and_an_example(called: str, command: Any) -> None:
    """The help of each command ends in an example that calls it; each of its options is explained."""
    assert command.help
    heading, *lines = command.epilog.removeprefix("\b\n").splitlines()
    assert heading == "Examples:"
    assert any(called in line for line in lines)
    assert all(parameter.help for parameter in command.params)


def test_every_key_is_documented() -> None:
    """Each key that bruce.toml may have stands in its manual page, with more than its name."""
    page = PAGES["bruce.toml.5"]()
    for keys in TABLES.values():
        for key in keys:
            _, _, text = page.partition(f".TP\n\\fB{key}\\fR\n")
            assert not text.startswith(" Accepts"), key
            assert "Default: " in text.partition("\n")[0], key


def test_the_traps_name_tests_that_exist() -> None:
    """Each of T1 to T48 has its row in docs/traps.md, and each test named there is one."""
    text = (ROOT / "docs/traps.md").read_text(encoding="utf-8")
    assert [int(n) for n in re.findall(r"^\| T(\d+) \|", text, re.MULTILINE)] == list(range(1, 49))
    for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text):
        source = (ROOT / path).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in source, f"{path}::{name}"


def test_help_starts_without_the_heavy_libraries() -> None:
    """`brucectl --help` imports none of the libraries that take long to load."""
    code = (
        "import sys, cli.app; cli.app.control(['--help'], standalone_mode=False);"
        "print(sorted({'numba', 'numpy', 'lmdb', 'confluent_kafka', 'pyspark'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_roff_keeps_text_as_it_is() -> None:
    """A line that begins with a dot is no request, a backslash no escape, a hyphen one that can be copied."""
    assert escape(".x \\ -y\n'z") == "\\&.x \\e \\-y\n\\&'z"


def test_indented_text_keeps_its_indentation() -> None:
    """A literal block loses its common indentation only, over blank lines too."""
    page = document("Prose of\ntwo lines.\n\n    a\n      b\n\n    c\n\nEnd.")
    assert page == ".PP\nProse of two lines.\n.PP\n.RS 4\n.nf\na\n  b\n\nc\n.fi\n.RE\n.PP\nEnd.\n"
