"""`brucectl doctor`: what is wrong with this host and environment."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import exits
from cli.arguments import examples

EXAMPLES = examples(
    "brucectl doctor", "brucectl doctor --json | jq -r '.checks[] | select(.ok | not).sentence'"
)
VERSION = 1


def doctor(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False
) -> None:
    """Look for what is wrong with this host and environment. Nothing is changed.

    Checked are: packages of others that are called like those of bruce (cli, dispatch, ingest, pipeline,
    router, spool, status), of which only one can be imported; and, where pyspark is installed, whether
    brucectl spark can run: the versions of pyspark, Java, pyarrow and pandas.

    Prints a line a check. With --json one document: version (1), ok, checks (ok, sentence). Exits with 1 when
    a check finds something wrong.
    """
    from cli.doctor import examine
    from cli.output import show_json, show_rows

    checks = examine()
    ok = all(check.ok for check in checks)
    if as_json:
        show_json({"version": VERSION, "ok": ok, "checks": [check._asdict() for check in checks]})
    else:
        show_rows(("", "check"), [("ok" if check.ok else "wrong", check.sentence) for check in checks])
    if not ok:
        raise typer.Exit(exits.FOUND)
