"""Manual pages of programs and their commands, made from the commands' help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
import typer.main

from cli.config import config
from cli.terminal import errors
from tools.roff import document, escape, inline, items, literal, paragraph, section, subsection, title


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(full name, command) of each command below this one."""
    for name, child in getattr(command, "commands", {}).items():
        called = f"{path} {name}"
        if getattr(child, "commands", None):
            yield from commands(child, called)
        else:
            yield called, child


def program(name: str, man_section: int, what: str, application: typer.Typer, release: str) -> str:
    """The page of a program with all its commands."""
    top = typer.main.get_command(application)
    context = top.make_context(name, [], resilient_parsing=True)
    described = [_described(called, child, context) for called, child in commands(top, name)]
    return _page(
        f"{name}({man_section})",
        release,
        what,
        section("SYNOPSIS", f".B {name}\n[\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]\n"),
        section("DESCRIPTION", document(top.help or "")),
        section("OPTIONS", items(_records(top, context))),
        section("COMMANDS", *described),
        related="bruce(7), brucectl(1), bruce.toml(5), bruce-spool(5)",
    )


def family(name: str, what: str, application: typer.Typer, release: str) -> dict[str, str]:
    """By file, the page of a program, and a page for each of its commands.

    The names are those that `man brucectl inspect` looks for: man joins a program and one command, no more.
    """
    top = typer.main.get_command(application)
    context = top.make_context(name, [], resilient_parsing=True)
    children: dict[str, Any] = getattr(top, "commands", {})
    heads = {f"{name}-{child}": _first_line(command) for child, command in children.items()}
    first = _page(
        f"{name}(1)",
        release,
        what,
        section("SYNOPSIS", f".B {name}\n[\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]\n"),
        section("DESCRIPTION", document(top.help or "")),
        section("OPTIONS", items(_records(top, context))),
        section("COMMANDS", items((f"{page}(1)", head) for page, head in heads.items())),
        related="bruce(7), bruce(8), bruce.toml(5), bruce-spool(5)",
    )
    pages = {f"{name}.1": first}
    for child, command in children.items():
        pages[f"{name}-{child}.1"] = _of_command(name, child, command, context, release)
    return pages


def _of_command(program_name: str, name: str, command: Any, parent: Any, release: str) -> str:
    called, page = f"{program_name} {name}", f"{program_name}-{name}(1)"
    head = _first_line(command).removesuffix(".")
    what, related = head[0].lower() + head[1:], f"{program_name}(1), bruce(7), bruce.toml(5)"
    if getattr(command, "commands", None):
        return _page(
            page,
            release,
            what,
            section("SYNOPSIS", f".B {escape(called)}\n\\fICOMMAND\\fR [\\fIARGUMENTS\\fR]\n"),
            section("COMMANDS", *(_described(c, child, parent) for c, child in commands(command, called))),
            related=related,
        )
    context = command.make_context(called, [], parent=parent, resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    return _page(
        page,
        release,
        what,
        section("SYNOPSIS", f".B {escape(called)}\n{escape(usage)}\n"),
        section("DESCRIPTION", document(command.help or "")),
        section("OPTIONS", items(_records(command, context))),
        section("EXAMPLES", literal(_examples(command))),
        related=related,
    )


def _page(page: str, release: str, what: str, *parts: str, related: str) -> str:
    """A whole page, called NAME(SECTION)."""
    name, _, number = page.removesuffix(")").partition("(")
    return "".join(
        [
            title(name, int(number), release),
            section("NAME", f"{escape(name)} \\- {inline(what)}\n"),
            *parts,
            section("EXIT STATUS", items((str(code), text) for code, text in errors.MEANINGS.items())),
            section("FILES", items([(str(config.SYSTEM_FILE), "The configuration; see bruce.toml(5).")])),
            section("SEE ALSO", inline(related) + "\n"),
        ]
    )


def _described(called: str, command: Any, parent: Any) -> str:
    context = command.make_context(called, [], parent=parent, resilient_parsing=True)
    usage = f"{called} {' '.join(command.collect_usage_pieces(context))}"
    return subsection(
        usage,
        document(command.help or ""),
        items(_records(command, context)),
        paragraph("Examples:"),
        literal(_examples(command)),
    )


def _first_line(command: Any) -> str:
    """The purpose of a command, in one sentence."""
    return " ".join((command.help or "").partition("\n\n")[0].split())


def _examples(command: Any) -> str:
    return "\n".join(line.strip() for line in (command.epilog or "").splitlines()[2:])


def _records(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    """(option, explanation) as --help shows them."""
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            yield record
