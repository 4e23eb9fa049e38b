"""`brucectl inspect frames`: the bursts that a log consists of."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cli import exits
from cli.arguments import AsJson, ConfigFile, SpoolDirectory, configured_spool, examples, file_errors
from cli.commands.inspect.options import Files, Limit, segment_files

if TYPE_CHECKING:
    from cli.committed import Committed
    from spool.format import Record

EXAMPLES = examples(
    "brucectl inspect frames --limit 20",
    "brucectl inspect frames --json | jq 'select(.discarded > 0)'",
    "brucectl inspect frames /mnt/dead-host/00000000000000450560.seg",
)


def frames(
    files: Files = None,
    *,
    spool: SpoolDirectory = None,
    limit: Limit = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Print every frame: one burst of the intake, as it was written.

    One line each: file, byte, first sequence number, messages, datagrams refused, bytes of body, when it was
    received, number of the burst, flags; "not committed" where a power loss could still take it. With --json
    one object a line: path, offset, first_sequence, messages, discarded, body_bytes, received, burst, xxh3,
    salvaged, poison, committed (null: no index says so).

    Exits with 1 when something on the way could not be read.
    """
    from cli.committed import Committed
    from cli.output import complain, show_lines
    from spool.layout import Layout

    troubles = itertools.count()

    def note(sentence: str) -> None:
        next(troubles)
        complain(sentence)

    with file_errors():
        paths = segment_files(files, spool, config)
        committed = Committed(None if files else Layout(configured_spool(spool, config)))
        found = itertools.islice(_objects(paths, committed, note, fleeting=not files), limit)
        show_lines(map(json.dumps if as_json else _line, found), cut=not as_json)
    raise typer.Exit(exits.FOUND if next(troubles) else exits.FINE)


def _objects(
    paths: list[Path], committed: Committed, damaged: Callable[[str], None], *, fleeting: bool
) -> Iterator[dict[str, Any]]:
    from spool.errors import BadSpool
    from spool.files import Unreadable, of_segment
    from spool.frames import read_frames

    def of_file(path: Path) -> Iterator[dict[str, Any]]:
        try:
            for found in read_frames(path):
                if isinstance(found, Unreadable):
                    damaged(f"{path}: {found.messages} messages cannot be read at byte {found.offset}")
                    continue
                for offset, head in zip(found[0].tolist(), found[1], strict=True):
                    yield _object(path, offset, head, committed)
        except BadSpool as error:
            damaged(f"{error}")

    for path in paths:
        yield from of_segment(of_file, path) if fleeting else of_file(path)


def _object(path: Path, offset: int, head: Record, committed: Committed) -> dict[str, Any]:
    from cli.records import as_utc
    from spool.format import POISON, SALVAGED

    first, flags = int(head["first_sequence"]), int(head["flags"])
    return {
        "path": str(path),
        "offset": offset,
        "first_sequence": first,
        "messages": int(head["count"]),
        "discarded": int(head["discarded"]),
        "body_bytes": int(head["body_bytes"]),
        "received": as_utc(int(head["received_ns"])),
        "burst": int(head["burst"]),
        "xxh3": f"{int(head['digest']):016x}",
        "salvaged": bool(flags & SALVAGED),
        "poison": bool(flags & POISON),
        "committed": committed.covers(first),
    }


def _line(one: dict[str, Any]) -> str:
    words = [name for name in ("salvaged", "poison") if one[name]]
    words += ["not committed"] if one["committed"] is False else []
    names = ("offset", "first_sequence", "messages", "discarded", "body_bytes", "received", "burst")
    return "\t".join([Path(one["path"]).name, *(str(one[name]) for name in names), ", ".join(words) or "-"])
