"""Groups of commands that are imported and built when they are asked for.

Of thirty commands one is run. To import them all, and to build the options of each, takes longer than a look
at a spool, and on a busy host whatever brucectl uses is missing elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

Builder = Callable[[], Any]
"""Makes a command, or a group of them."""


def new_app(help_text: str, builders: Mapping[str, Builder], *, add_completion: bool = False) -> typer.Typer:
    """A group with these commands, by name."""
    return typer.Typer(
        cls=_group_of(builders),
        help=help_text,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        rich_markup_mode=None,  # help is what `man` shows, on every terminal
        pretty_exceptions_enable=False,  # a traceback with locals would show the payload of messages
        add_completion=add_completion,
    )


def command(module: str, function: str = "", examples: str = "EXAMPLES") -> Builder:
    """One command: that `function` (else what the module is called) of a module in cli.commands."""

    def build() -> Any:
        found, name = import_module(f"cli.commands.{module}"), function or module.rpartition(".")[2]
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        alone.command(name, epilog=getattr(found, examples))(getattr(found, name))
        return typer.main.get_command(alone)

    return build


def group(name: str, application: typer.Typer) -> Builder:
    """A group in a group."""

    def build() -> Any:
        built = typer.main.get_group(application)
        built.name = name
        return built

    return build


class _Commands(Mapping[str, Any]):
    """By name, each built when it is asked for."""

    def __init__(self, builders: Mapping[str, Builder]) -> None:
        self._builders = builders
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = self._builders[name]()
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._builders)

    def __len__(self) -> int:
        return len(self._builders)


def _group_of(builders: Mapping[str, Builder]) -> type[TyperGroup]:
    class Group(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands: Any = _Commands(builders)

    return Group
