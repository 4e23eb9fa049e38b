"""`brucectl config`: bruce.toml looked at, and made from those of Bruce and Dory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import AsJson, ConfigFile, examples

VERSION = 1
CHECK_EXAMPLES = examples("brucectl config check", "brucectl config check --config new.toml")
SHOW_EXAMPLES = examples("brucectl config show", "brucectl config show --json | jq .settings")
CONVERT_EXAMPLES = examples(
    "brucectl config convert /etc/dory/dory.xml > bruce.toml", "brucectl config convert bruce_conf.xml --json"
)

Source = Annotated[Path, typer.Argument(metavar="FILE", help="An XML file of Bruce 1.0 or Dory 3.2.")]


def check(*, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Say whether the daemon would start with this configuration.

    Variables of the environment (BRUCE_TABLE_KEY) count, too. librdkafka judges its own properties. A
    wrong key or value is one sentence with file, table and key, and exit code 2.
    With --json one document of version 1: file (null: none was read), first_try.
    """
    from cli.config import load_config
    from cli.output import say, show_json
    from cli.trial import try_parts

    settings = load_config(config)
    try_parts(settings)
    if as_json:
        file = None if settings.file is None else str(settings.file)
        show_json({"version": VERSION, "file": file, "first_try": settings.first_try})
    elif settings.first_try:
        say("fine, for a first try: nothing says where Kafka is, and an embedded one forgets at its end")
    else:
        say(f"fine: {settings.file or 'the environment'}")


def show(*, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Print what is set, and where: in a file, or by a variable of the environment. Secrets are not shown.

    As a bruce.toml; what is not in it has its default, see bruce.toml(5). With --json one document of
    version 1: file, settings: table, key, value, where. Exit code 2 where `config check` has it.
    """
    from cli.config import given_settings, load_config
    from cli.effective import as_document, as_toml
    from cli.output import say, show_json

    file, settings = load_config(config).file, given_settings(config)
    if as_json:
        show_json({"version": VERSION, "file": None if file is None else str(file), **as_document(settings)})
    else:
        say(as_toml(settings))


def convert(source: Source, *, as_json: AsJson = False) -> None:
    """Print the bruce.toml that does what a file of Bruce or Dory did, with a note for what it cannot say.

    Notes are comments at its beginning. With --json one document of version 1: tables, notes.
    """
    from cli.convert import Conversion
    from cli.output import say, show_json
    from cli.toml import comment, write_tables

    made = Conversion(source)
    if as_json:
        show_json({"version": VERSION, "tables": made.tables, "notes": made.notes})
        return
    say(f"# Made from {source}. What bruce does otherwise, or cannot do:\n#\n{comment(made.notes)}")
    say(write_tables(made.tables))
