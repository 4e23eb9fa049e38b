"""How a program begins and ends: what it cannot do is one sentence on standard error, and an exit code.

A program whose output nobody reads any more dies of SIGPIPE, as cat and grep do: a shell calls that 141, and
none counts it as an error of the program. It gets there by way of the exception, so that what it holds is
let go first.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

import typer

from cli import exits
from cli.output import complain, is_of_output


def enter(app: typer.Typer, name: str) -> NoReturn:
    """Run a command of the program `name` to its end."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without Unicode, and names of files that are no text.
        sys.stdout.reconfigure(errors="backslashreplace")
    code = _run(app, name)
    if code == exits.NO_READER:
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
    except exits.KNOWN as error:
        complain(str(error))
        return exits.exit_code(error)
    except typer.TyperException as error:
        complain(_explain(error))
        return exits.USAGE
    except OSError as error:
        return _refused(error)
    except SystemExit as ended:
        if ended.code == exits.FOUND:  # typer's word for a pipe that nobody reads any more
            _drop_output()
            return exits.NO_READER
        raise
    return code or exits.FINE


def _explain(error: typer.TyperException) -> str:
    """What is wrong with the arguments; without any, the help."""
    context, message = getattr(error, "ctx", None), error.format_message()
    if context is None or message.startswith("Usage:"):
        return message
    sentence = " ".join(message.split()).removesuffix(".")
    return f"{context.command_path}: {sentence}; see {context.command_path} --help"


def _refused(error: OSError) -> int:
    """What the system did not let us do. Raises the error when nobody can tell what that was."""
    if error.filename is not None:
        complain(f"{os.fsdecode(error.filename)}: {error.strerror}")
        return exits.USAGE
    if not is_of_output(error):
        raise error
    _drop_output()
    if isinstance(error, BrokenPipeError):
        return exits.NO_READER
    complain(f"standard output cannot be written: {error.strerror}")
    return exits.FOUND


def _drop_output() -> None:
    """What could not be written is not tried again by the interpreter's end."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
