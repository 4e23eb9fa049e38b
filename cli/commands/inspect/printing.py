"""How the commands of `brucectl inspect` print messages: one line each, as they are found."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from cli import exits
from cli.arguments import configured_spool, file_errors
from cli.commands.inspect.options import segment_files
from cli.committed import Committed
from cli.errors import BadArgument
from cli.following import follow
from cli.output import complain, show_lines
from cli.records import as_columns, as_object, select
from spool.layout import Layout

if TYPE_CHECKING:
    from spool.files import Span
    from spool.pattern import Pattern
    from spool.record import Batch


def print_records(
    files: list[Path] | None,
    spool: Path | None,
    config: Path | None,
    *,
    span: Span,
    pattern: Pattern | None = None,
    limit: int | None,
    values: bool,
    as_json: bool,
    on_and_on: bool = False,
) -> NoReturn:
    """Print what is asked for, then leave: FOUND when something could not be read, or nothing had `pattern`.

    `on_and_on`: go on with what comes. Raises BadArgument, NoSpool.
    """
    layout = None if files else Layout(configured_spool(spool, config))
    if on_and_on and layout is None:
        raise BadArgument("--follow needs a spool: a file by itself does not say what is committed")
    committed, troubles, printed = Committed(layout), itertools.count(), itertools.count()

    def note(sentence: str) -> None:
        next(troubles)
        complain(sentence)

    def found() -> Iterator[tuple[Batch, int]]:
        paths = segment_files(files, spool, config)
        if on_and_on and layout is not None:
            return follow(layout, span, pattern, note)
        return select(paths, span, note, pattern=pattern, fleeting=not files)

    # At whatever place Control-C comes: who follows has no other end.
    with file_errors(), suppress(*([KeyboardInterrupt] if on_and_on else [])):
        lines = map(_shape(committed, values=values, as_json=as_json), itertools.islice(found(), limit))
        show_lines(_counted(lines, printed), cut=not as_json)
    missed = pattern is not None and not next(printed)
    raise typer.Exit(exits.FOUND if next(troubles) or missed else exits.FINE)


def _counted(lines: Iterator[str], count: Iterator[int]) -> Iterator[str]:
    for line in lines:
        next(count)
        yield line


def _shape(committed: Committed, *, values: bool, as_json: bool) -> Callable[[tuple[Batch, int]], str]:
    def to_json(one: tuple[Batch, int]) -> str:
        says = committed.covers(int(one[0].sequence[one[1]]))
        return json.dumps({**as_object(*one, values=values), "committed": says})

    def to_line(one: tuple[Batch, int]) -> str:
        mark = ["not committed"] if committed.covers(int(one[0].sequence[one[1]])) is False else []
        return "\t".join([*as_columns(*one, values=values), *mark])

    return to_json if as_json else to_line
