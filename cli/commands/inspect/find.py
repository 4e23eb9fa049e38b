"""`brucectl inspect find`: messages that hold something."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import AsJson, ConfigFile, Since, SpoolDirectory, Topics, Until, examples
from cli.commands.inspect.options import Files, Limit, NoValues
from cli.errors import BadArgument

if TYPE_CHECKING:
    from spool.pattern import Pattern

EXAMPLES = examples(
    "brucectl inspect find customer-4711 --from -2h",
    "brucectl inspect find --hex 00ff17 --topic clicks --json",
    "brucectl inspect find --regex '^\\{\"order\": ?[0-9]+' --no-values",
)


def find(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="What a key or a value holds.")],
    files: Files = None,
    *,
    hexadecimal: Annotated[bool, typer.Option("--hex", help="PATTERN is bytes, in hexadecimal.")] = False,
    regex: Annotated[
        bool, typer.Option("--regex", help="PATTERN is a regular expression (Python's, over bytes).")
    ] = False,
    spool: SpoolDirectory = None,
    since: Since = None,
    until: Until = None,
    topic: Topics = None,
    limit: Limit = None,
    no_values: NoValues = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Print the messages whose key or value holds a pattern, as `inspect records` prints them.

    With --json the objects of `brucectl inspect records`. Exits with 1 when none does, or when something on
    the way could not be read.
    """
    from cli.commands.inspect.printing import print_records
    from cli.span import parse_span

    print_records(
        files,
        spool,
        config,
        span=parse_span(since, until, topic or ()),
        pattern=_parse(pattern, hexadecimal=hexadecimal, regex=regex),
        limit=limit,
        values=not no_values,
        as_json=as_json,
    )


def _parse(text: str, *, hexadecimal: bool, regex: bool) -> Pattern:
    """What is searched for. Raises BadArgument."""
    from spool.pattern import Plain, Regex

    if hexadecimal and regex:
        raise BadArgument("give either --hex or --regex: a regular expression takes bytes as \\x00")
    if not text:
        raise BadArgument("PATTERN is empty: every message holds it; see `brucectl inspect records`")
    if hexadecimal:
        try:
            return Plain(bytes.fromhex(text))
        except ValueError:
            raise BadArgument(f"--hex {text}: it takes pairs of hexadecimal digits, as 00ff17") from None
    if not regex:
        return Plain(text.encode("utf-8", "surrogateescape"))
    try:
        return Regex(text.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise BadArgument(f"--regex {text}: {error}") from None
