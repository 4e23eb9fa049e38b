"""A program of commands: how its commands are built, and how it runs one and ends.

A command is imported and built when it is asked for: of thirty commands one runs, and to import all of them
takes longer than a look at a spool.

An error that is expected ends the program with one sentence on standard error, and an exit code. A program
whose output has no reader any more dies of SIGPIPE, like cat and grep: a shell calls that 141, and none
counts it as an error. The exception comes first, so that the program lets go of what it holds.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import typer
import typer.main
from typer.core import TyperGroup

from cli.terminal import errors
from cli.terminal.output import complain, is_of_output

_WHOLE = 1000
"""Characters, more than any summary has."""
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

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            """Each command with the first sentence of its help, uncut."""
            rows = [
                (name, self.commands[name].get_short_help_str(_WHOLE)) for name in self.list_commands(ctx)
            ]
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    return Group


def enter(app: typer.Typer, name: str) -> NoReturn:
    """Run a command of the program `name` to its end."""
    for stream, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # Python has None for one that was closed, and a file that is opened later would get its descriptor.
        if getattr(sys, stream) is None:
            setattr(sys, stream, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (to the end)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without Unicode, and names of files that are no text.
        sys.stdout.reconfigure(errors="backslashreplace")
    code = _run(app, name)
    if code == errors.NO_READER:
        end_without_reader()
    raise SystemExit(code)


def end_without_reader() -> None:
    """Die of SIGPIPE. Returns only where that is blocked."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)


def _run(app: typer.Typer, name: str) -> int:
    try:
        code = app(prog_name=name, standalone_mode=False)
        if sys.stdout:  # None when it was closed
            sys.stdout.flush()
    except errors.KNOWN as error:
        complain(str(error))
        return errors.exit_code(error)
    except typer.TyperException as error:
        complain(_explain(error))
        return errors.USAGE
    except OSError as error:
        return _refused(error)
    except SystemExit as ended:
        if ended.code == errors.FOUND:  # typer's code for a pipe without a reader
            _drop_output()
            return errors.NO_READER
        raise
    except Exception:  # noqa: BLE001  (its exit code would be 1, which says that something was found)
        traceback.print_exc()
        return errors.DEFECT
    return code or errors.FINE


def _explain(error: typer.TyperException) -> str:
    """The error in the arguments as one sentence; the help if there are no arguments."""
    context, message = getattr(error, "ctx", None), error.format_message()
    if context is None or message.startswith("Usage:"):
        return message
    sentence = " ".join(message.split()).removesuffix(".")
    return f"{context.command_path}: {sentence}; see {context.command_path} --help"


def _refused(error: OSError) -> int:
    """Explain an error of the system; the exit code."""
    if error.filename is not None:
        complain(f"{os.fsdecode(error.filename)}: {error.strerror}")
        return errors.USAGE
    if not is_of_output(error):
        traceback.print_exception(error)
        return errors.DEFECT
    _drop_output()
    if isinstance(error, BrokenPipeError):
        return errors.NO_READER
    complain(f"standard output cannot be written: {error.strerror}")
    return errors.UNFINISHED


def _drop_output() -> None:
    """Redirect standard output to /dev/null, so that the interpreter does not try again at its end."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
