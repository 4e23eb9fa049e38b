"""Write the manual pages in man/ from the commands' help and from docstrings.

python -m tools.gen_man             writes them
python -m tools.gen_man --check     exits 1 and names the pages that are not as they would be written
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main

from cli import app, config, exits, settings
from cli.sizes import format_size
from dispatch.options import DispatchOptions
from spool.options import SpoolOptions
from spool.wire import Reason, reason_name
from tools import docstrings
from tools.roff import document, escape, inline, items, literal, paragraph, section, subsection, title

ROOT = Path(__file__).resolve().parent.parent
RELEASE = (
    "bruce " + tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
)

_OPTIONS: dict[str, tuple[str, Any]] = {
    "ingest": ("cli/config.py", config.IngestOptions),
    "spool": ("spool/options.py", SpoolOptions),
    "dispatch": ("dispatch/options.py", DispatchOptions),
}
_DEFAULTS = {
    "directory": "/var/lib/bruce for root, for others $XDG_STATE_HOME/bruce or ~/.local/state/bruce",
    "ack_socket": "none",
    "datagram_socket": "/run/bruce/bruce.sock for root, for others $XDG_RUNTIME_DIR/bruce.sock "
    "or /tmp/bruce-UID.sock",
    "min_free_bytes": "256MiB, or a twentieth of a filesystem smaller than 5GiB",
    "keep_delivered_bytes": "as many as max_bytes and min_free_bytes leave",
    "keep_delivered_hours": "until the room is needed",
}
_EXAMPLE = """
    [spool]
    directory = "/var/lib/bruce"
    max_bytes = "200GiB"

    [kafka]
    "bootstrap.servers" = "kafka1:9092,kafka2:9092,kafka3:9092"
    "compression.type" = "lz4"

    [topics."clicks"]
    partitioner = "murmur2"
    rate = 20000
    "compression.type" = "zstd"
"""


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(how it is called, command) of each command below this one."""
    for name, child in getattr(command, "commands", {}).items():
        called = f"{path} {name}"
        if getattr(child, "commands", None):
            yield from commands(child, called)
        else:
            yield called, child


def program(name: str, man_section: int, what: str, application: typer.Typer, related: str) -> str:
    """The page of a program."""
    top = typer.main.get_command(application)
    context = top.make_context(name, [], resilient_parsing=True)
    parts = [
        title(name, man_section, RELEASE),
        section("NAME", f"{name} \\- {inline(what)}\n"),
        section("SYNOPSIS", f".B {name}\n[\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]\n"),
        section("DESCRIPTION", document(top.help or "")),
        section("OPTIONS", items(_records(top, context))),
    ]
    if described := [_command(called, child, context) for called, child in commands(top, name)]:
        parts.append(section("COMMANDS", *described))
    parts += [
        section("EXIT STATUS", items((str(code), text) for code, text in exits.MEANINGS.items())),
        section("FILES", items([(str(config.SYSTEM_FILE), "The configuration; see bruce.toml(5).")])),
        section("SEE ALSO", inline(related) + "\n"),
    ]
    return "".join(parts)


def _command(called: str, command: Any, parent: Any) -> str:
    context = command.make_context(called, [], parent=parent, resilient_parsing=True)
    usage = f"{called} {' '.join(command.collect_usage_pieces(context))}"
    shown = [line.strip() for line in (command.epilog or "").splitlines()[2:]]
    return subsection(
        usage,
        document(command.help or ""),
        items(_records(command, context)),
        paragraph("Examples:"),
        literal("\n".join(shown)),
    )


def _records(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    """(option, explanation) as --help shows them."""
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            yield record


def configuration() -> str:
    """bruce.toml(5)."""
    kafka = docstrings.of_attributes(ROOT / "dispatch/options.py", "DispatchOptions")
    described = docstrings.of_attributes(ROOT / "cli/config.py", "Config")
    quotas = docstrings.of_attributes(ROOT / "spool/options.py", "SpoolOptions")["quotas"]
    kinds = settings.TOPIC_KEYS
    own = {
        "partitioner": f"{described['partitioners']} Accepts: {kinds['partitioner'].accepts}.",
        "quota": f"{quotas} Accepts: {kinds['quota'].accepts}.",
        "rate": f"{described['rates']} Accepts: {kinds['rate'].accepts}.",
        "rate_excess": f"Accepts: {kinds['rate_excess'].accepts}. Default: delay.",
    }
    others = ", ".join(f"`{key}`" for key in kinds if key not in own)
    introduction = docstrings.of_module(ROOT / "cli/config.py").partition("\n\n")[2]
    return "".join(
        [
            title("bruce.toml", 5, RELEASE),
            section("NAME", "bruce.toml \\- what can be set about bruce\n"),
            section("DESCRIPTION", document(introduction)),
            *(section(escape(f"[{table}]"), items(_keys(table))) for table in _OPTIONS),
            section("[kafka]", document(kafka["kafka"])),
            section(
                '[topics."NAME"]',
                items(own.items()),
                paragraph(f"A topic can have its own of these librdkafka properties: {others}."),
            ),
            section("EXAMPLE", literal(_EXAMPLE)),
            section("SEE ALSO", "bruce(8), brucectl(1)\n"),
        ]
    )


def _keys(table: str) -> Iterator[tuple[str, str]]:
    path, options = _OPTIONS[table]
    documented = docstrings.of_attributes(ROOT / path, options.__name__)
    fields = {field.name: field for field in dataclasses.fields(options)}
    for key, kind in settings.TABLES[table].items():
        default = _DEFAULTS.get(key) or _shown(fields[key].default, in_bytes="bytes" in key)
        yield key, f"{documented[key]} Accepts: {kind.accepts}. Default: {default}."


def _shown(value: object, *, in_bytes: bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value == "":
        return "none"
    return format_size(value) if isinstance(value, int) and in_bytes else str(value)


def on_disk() -> str:
    """bruce-spool(5)."""

    def specification(path: str) -> str:
        return document(docstrings.of_module(ROOT / path).replace(" No I/O happens here.", ""))

    meanings = docstrings.of_attributes(ROOT / "spool/wire.py", "Reason")
    reasons = (
        (f"{reason.value} {reason_name(reason)}", meanings[reason.name]) for reason in Reason if reason
    )
    return "".join(
        [
            title("bruce-spool", 5, RELEASE),
            section("NAME", "bruce\\-spool \\- the files of a spool, byte by byte\n"),
            section("FILES", specification("spool/layout.py")),
            section("SEGMENTS", specification("spool/format.py")),
            section("PACKED SEGMENTS", specification("spool/packed.py")),
            section("LEASE OF DELIVERY", specification("spool/lease.py")),
            section("OUTCOME FILES", specification("spool/outcome_file.py")),
            section("LANES OF JOBS", specification("spool/lanes.py")),
            section("COUNTS FILES", specification("spool/counts_file.py")),
            section("DATAGRAMS", specification("spool/wire.py")),
            section("REASONS", paragraph("Why a datagram or a message was discarded:"), items(reasons)),
            section("SEE ALSO", "bruce(8), brucectl(1)\n"),
        ]
    )


def acknowledgement() -> str:
    """bruce-ack(7)."""
    text = docstrings.of_module(ROOT / "ingest/reply.py").replace(" No I/O happens here.", "")
    return "".join(
        [
            title("bruce-ack", 7, RELEASE),
            section("NAME", "bruce\\-ack \\- being told when a message is safe\n"),
            section("DESCRIPTION", document(text)),
            section("SEE ALSO", "bruce.toml(5), bruce-spool(5), bruce(8)\n"),
        ]
    )


PAGES: dict[str, Callable[[], str]] = {
    "brucectl.1": lambda: program(
        "brucectl",
        1,
        "look into, feed and steer bruce",
        app.control,
        "bruce(8), bruce.toml(5), bruce-spool(5)",
    ),
    "bruce.8": lambda: program(
        "bruce", 8, "the durable way into Kafka", app.daemon, "brucectl(1), bruce.toml(5), bruce-spool(5)"
    ),
    "bruce.toml.5": configuration,
    "bruce-spool.5": on_disk,
    "bruce-ack.7": acknowledgement,
}


def stale(directory: Path) -> list[str]:
    """The pages in `directory` that are missing, or not as they would be written."""
    return [
        name
        for name, page in PAGES.items()
        if not (directory / name).exists() or (directory / name).read_text(encoding="utf-8") != page()
    ]


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(prog="tools.gen_man", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page would change")
    if parser.parse_args().check:
        for name in (old := stale(ROOT / "man")):
            print(f"man/{name} is not current; run python -m tools.gen_man")
        return 1 if old else 0
    (ROOT / "man").mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (ROOT / "man" / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
