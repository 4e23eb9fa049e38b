"""Write the manual pages in man/, from the commands' help, docstrings and README.md, and completions/.

python -m tools.gen_man             writes them
python -m tools.gen_man --check     exits 1 and names the files that differ from the output
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main

from cli import app
from cli.config import settings
from cli.config.kinds import format_size
from cli.config.settings import IngestOptions, LogOptions
from cli.terminal import errors, output
from dispatch.options import DispatchOptions
from spool.format.wire import Reason, encode, encode_batch, encode_message, reason_name
from spool.options import SpoolOptions
from status.access import StatusOptions
from status.witness import WitnessOptions
from tools import docstrings
from tools.command_pages import commands, family, program
from tools.completion import PROGRAMS, completions
from tools.markdown import as_roff, section_of
from tools.roff import document, escape, items, literal, paragraph, section, title
from tools.wire_fields import list_fields

ROOT = Path(__file__).resolve().parent.parent
RELEASE = (
    "bruce " + tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
)

_OPTIONS: dict[str, tuple[str, Any]] = {
    "ingest": ("cli/config/settings.py", IngestOptions),
    "spool": ("spool/options.py", SpoolOptions),
    "dispatch": ("dispatch/options.py", DispatchOptions),
    "status": ("status/access.py", StatusOptions),
    "witness": ("status/witness.py", WitnessOptions),
    "log": ("cli/config/settings.py", LogOptions),
}
_DIGITS = 24
"""Width of the bytes of an example."""
_HELLO = encode_message(
    b"orders", b"hello", key=b"customer-7", partition=3, timestamp=1_700_000_000_123, headers=[("n", b"1")]
)
_WIRE_EXAMPLES = {
    "A Message for partition 3 of the topic `orders`, with a header:": _HELLO,
    "A Message whose value is null, which deletes its key from a compacted topic:": encode_message(
        b"users", None, key=b"4711"
    ),
    "A batch of an AnyPartition and a PartitionKey message:": encode_batch(
        [encode(b"t", b"a"), encode(b"t", b"b", partition_key=-1)]
    ),
}
_DEFAULTS = {
    "spool directory": "/var/lib/bruce for root and in bruce.service, for others $XDG_STATE_HOME/bruce "
    "or ~/.local/state/bruce",
    "ack_socket": "none",
    "stream_socket": "none",
    "tcp_port": "none",
    "socket_mode": '"0666"',
    "socket_group": "that of bruce",
    "datagram_socket": "/run/bruce/bruce.sock for root and in bruce.service, for others "
    "$XDG_RUNTIME_DIR/bruce.sock or /tmp/bruce-UID.sock",
    "min_free_bytes": "256MiB, or a twentieth of a filesystem smaller than 5GiB",
    "keep_delivered_bytes": "as many as max_bytes and min_free_bytes leave",
    "keep_delivered_hours": "until the room is needed",
}
_DOCUMENTS = {
    "brucectl status": ("status/report.py",),
    "brucectl inspect show": ("cli/inspect/message.py",),
    "brucectl audit": ("pipeline/audit_report.py", "pipeline/witness/report.py"),
    "brucectl stats": ("pipeline/stats.py",),
}
"""The module that describes the document of a command, when it is too long for its help."""
_JSON = re.compile(r"\bwith --json\s.*?(?=\n\n|\Z)", re.IGNORECASE | re.DOTALL)
_EXAMPLE = """
    [spool]
    directory = "/var/lib/bruce"
    max_bytes = "200GiB"

    [kafka]
    "bootstrap.servers" = "kafka1:9092,kafka2:9092,kafka3:9092"
    "compression.type" = "lz4"

    [[input]]
    datagram = "/run/shop/bruce.sock"
    mode = "0660"
    group = "shop"

    [access]
    "payments.*" = ["user:shop", "group:billing"]

    [topics."clicks"]
    partitioner = "murmur2"
    rate = 20000
    "compression.type" = "zstd"
"""


def configuration() -> str:
    """bruce.toml(5)."""
    kafka = docstrings.of_attributes(ROOT / "dispatch/options.py", "DispatchOptions")
    described = docstrings.of_attributes(ROOT / "cli/config/config.py", "Config")
    quotas = docstrings.of_attributes(ROOT / "spool/options.py", "SpoolOptions")["quotas"]
    described_inputs = docstrings.of_attributes(ROOT / "cli/config/settings.py", "IngestOptions")["inputs"]
    kinds = settings.TOPIC_KEYS
    own = {
        "partitioner": f"{described['partitioners']} Accepts: {kinds['partitioner'].accepts}.",
        "quota": f"{quotas} Accepts: {kinds['quota'].accepts}.",
        "rate": f"{described['rates']} Accepts: {kinds['rate'].accepts}.",
        "rate_excess": f"Accepts: {kinds['rate_excess'].accepts}. Default: delay.",
    }
    others = ", ".join(f"`{key}`" for key in kinds if key not in own)
    introduction = docstrings.of_module(ROOT / "cli/config/config.py").partition("\n\n")[2]
    return "".join(
        [
            title("bruce.toml", 5, RELEASE),
            section("NAME", "bruce.toml \\- what can be set about bruce\n"),
            section("DESCRIPTION", document(introduction)),
            *(section(escape(f"[{table}]"), items(_keys(table))) for table in _OPTIONS),
            section(
                "[[input]]",
                document(described_inputs),
                items((key, f"Accepts: {kind.accepts}.") for key, kind in settings.INPUT_KEYS.items()),
            ),
            section("[access]", document(f"{described['access']} Accepts: {settings.ACCESS_KEY.accepts}.")),
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
        default = (
            _DEFAULTS.get(key)
            or _DEFAULTS.get(f"{table} {key}")
            or _shown(fields[key].default, in_bytes="bytes" in key)
        )
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

    meanings = docstrings.of_attributes(ROOT / "spool/format/wire.py", "Reason")
    reasons = (
        (f"{reason.value} {reason_name(reason)}", meanings[reason.name]) for reason in Reason if reason
    )
    return "".join(
        [
            title("bruce-spool", 5, RELEASE),
            section("NAME", "bruce\\-spool \\- the files of a spool, byte by byte\n"),
            section("FILES", specification("spool/layout.py")),
            section("SEGMENTS", specification("spool/format/segment_format.py")),
            section("PACKED SEGMENTS", specification("spool/format/packed.py")),
            section("THE BOOK OF SUMS", specification("spool/format/sums_book.py")),
            section("GAPS", specification("spool/format/damage.py")),
            section("LEASE OF DELIVERY", specification("spool/marks/lease.py")),
            section("OUTCOME FILES", specification("spool/marks/outcome_file.py")),
            section("COUNTS FILES AND TRANSACTIONAL TASKS", specification("spool/marks/task_files.py")),
            section("REASONS", paragraph("Why a datagram or a message was discarded:"), items(reasons)),
            section("SEE ALSO", "bruce\\-wire(7), bruce(8), brucectl(1)\n"),
        ]
    )


def wire() -> str:
    """bruce-wire(7)."""
    text = docstrings.of_module(ROOT / "spool/format/wire.py").replace(" No I/O happens here.", "")
    return "".join(
        [
            title("bruce-wire", 7, RELEASE),
            section("NAME", "bruce\\-wire \\- the bytes that programs send\n"),
            section("DESCRIPTION", document(text)),
            section("EXAMPLES", *(_example(words, data) for words, data in _WIRE_EXAMPLES.items())),
            section("SEE ALSO", "bruce(7), bruce\\-ack(7), bruce\\-spool(5)\n"),
        ]
    )


def _example(words: str, data: bytes) -> str:
    lines = (f"{digits:<{_DIGITS}}  {text}" for digits, text in list_fields(data))
    return paragraph(words) + literal("\n".join(lines))


def acknowledgement() -> str:
    """bruce-ack(7)."""
    text = docstrings.of_module(ROOT / "ingest/reply.py").replace(" No I/O happens here.", "")
    return "".join(
        [
            title("bruce-ack", 7, RELEASE),
            section("NAME", "bruce\\-ack \\- being told when a message is safe\n"),
            section("DESCRIPTION", document(text)),
            section("SEE ALSO", "bruce.toml(5), bruce\\-wire(7), bruce\\-spool(5), bruce(8)\n"),
        ]
    )


def guarantees() -> str:
    """bruce(7): the promises of README.md, and their limits."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return "".join(
        [
            title("bruce", 7, RELEASE),
            section("NAME", "bruce \\- what is promised, and what is not\n"),
            section("DESCRIPTION", as_roff(readme.partition("\n\n")[2].partition("\n\n```")[0])),
            section("GUARANTEES", as_roff(section_of(readme, "Promises"))),
            section("LIMITATIONS", as_roff(section_of(readme, "Limitations"))),
            section("EXIT STATUS", items((str(code), text) for code, text in errors.MEANINGS.items())),
            section(
                "SEE ALSO",
                "bruce(8), brucectl(1), bruce.toml(5), bruce\\-spool(5), bruce\\-wire(7), bruce\\-ack(7)\n",
            ),
        ]
    )


def json_shapes() -> str:
    """bruce-json(5): the document of each command with --json, from its help or its module."""
    shapes = []
    for called, command in commands(typer.main.get_command(app.control), "brucectl"):
        if paths := _DOCUMENTS.get(called):
            told = [document(docstrings.of_module(ROOT / path)) for path in paths]
            shapes.append(section(escape(called), *told))
        elif found := _JSON.search(command.help or ""):
            shapes.append(section(escape(called), document(found[0])))
    return "".join(
        [
            title("bruce-json", 5, RELEASE),
            section("NAME", "bruce\\-json \\- what brucectl prints with \\-\\-json\n"),
            section("DESCRIPTION", document(output.__doc__.partition("\n\n")[2])),
            *shapes,
            section(
                "THE LOG", document(docstrings.of_module(ROOT / "cli/daemon/logs.py").partition("\n\n")[2])
            ),
            section("SEE ALSO", "brucectl(1), bruce(7)\n"),
        ]
    )


PAGES: dict[str, Callable[[], str]] = {
    "bruce.8": lambda: program("bruce", 8, "the durable way into Kafka", app.daemon, RELEASE),
    "bruce.toml.5": configuration,
    "bruce-spool.5": on_disk,
    "bruce-ack.7": acknowledgement,
    "bruce-wire.7": wire,
    "bruce.7": guarantees,
    "bruce-json.5": json_shapes,
}


def files() -> dict[str, str]:
    """By path from the root, all generated files."""
    pages = {name: page() for name, page in PAGES.items()}
    pages |= family("brucectl", "look into, feed and steer bruce", app.control, RELEASE)
    scripts = {name: script for program in PROGRAMS for name, script in completions(program).items()}
    return {f"man/{name}": page for name, page in pages.items()} | {
        f"completions/{name}": script for name, script in scripts.items()
    }


def stale(root: Path) -> list[str]:
    """The generated files under `root` that are missing, outdated, or not wanted."""
    wanted = files()
    there = {
        str(path.relative_to(root)) for name in ("man", "completions") for path in (root / name).glob("*")
    }
    changed = {
        name
        for name, text in wanted.items()
        if name not in there or (root / name).read_text(encoding="utf-8") != text
    }
    return sorted(changed | (there - wanted.keys()))


def main() -> int:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(prog="tools.gen_man", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file would change")
    if parser.parse_args().check:
        for name in (old := stale(ROOT)):
            print(f"{name} is not current; run python -m tools.gen_man")
        return 1 if old else 0
    wanted = files()
    for name in stale(ROOT):
        (ROOT / name).parent.mkdir(exist_ok=True)
        if name in wanted:
            (ROOT / name).write_text(wanted[name], encoding="utf-8")
        else:
            (ROOT / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
