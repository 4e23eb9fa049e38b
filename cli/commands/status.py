"""`brucectl status`: one look at a spool; `brucectl top`: a look each second."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands.arguments import AsJson, ConfigFile, SpoolDirectory, examples, file_errors
from cli.terminal import errors
from cli.terminal.errors import BadArgument

if TYPE_CHECKING:
    from cli.status.figures import Top, Watcher
    from spool.options import SpoolOptions
    from status.witness import Witness

EXAMPLES = examples(
    "brucectl status",
    "brucectl status --json | jq -r '.unhealthy[].sentence'",
    "brucectl status --max-age 1h --full-within 4h    # as a check of Nagios, or of a systemd timer",
    "sh -c 'brucectl status || exit 2'                # the same, CRITICAL and not WARNING to Nagios",
    "brucectl status --spool /mnt/dead-host/var/lib/bruce",
)
TOP_EXAMPLES = examples("brucectl top", "brucectl top --spool /var/lib/bruce")
EACH_S = 1.0
_ORDERS = {"r": "rate", "b": "backlog", "n": "name"}


def status(
    *,
    spool: SpoolDirectory = None,
    max_age: Annotated[
        str, typer.Option(metavar="TIME", help="Unhealthy when a message waits for longer: 30s, 15m, 2h.")
    ] = "15m",
    full_within: Annotated[
        str, typer.Option(metavar="TIME", help="Unhealthy when at this rate the spool is full sooner.")
    ] = "1h",
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Show what an operator needs to know, on one screen; exits with 1 when the spool is unhealthy.

    Counts, rates of the last minute and quarter of an hour, watermarks, the oldest undelivered message, how
    long there is room at this rate, the backlog by topic, brokers, discards by reason, workers, and in
    words what is wrong. Watermarks are the next sequence number that is not yet accepted, written, synced,
    delivered. "waits from" is the first message that waits for a broker, by sequence number. Topics marked ~
    are estimated: a broker has been away for long. Times are in UTC.

    All but rates, brokers and workers comes from the spool's files: it is right with the daemon dead, too.
    Nothing is written.

    Each line that begins with "unhealthy" is one of these conditions: stopped (no daemon is running), release
    (one of another release than brucectl is, whose workers, brokers and rates cannot be seen), worker (a
    process of it is not running, or does nothing), inputs (programs do not reach a socket), trouble (nothing
    can be sent, or not to some topics), old (a message waits for longer than --max-age), late (messages wait
    that are older, by their own timestamps, than their topic keeps or takes), full (no room, or a quota is
    used up), filling (full within --full-within at the rate of a minute in which the backlog grew all the
    time, or at that of a quarter of an hour), discards (messages were discarded in the last quarter of an
    hour), disk (the disk has refused something, does not answer, does not give what is stored, or has no file
    where a segment should be), marks (they cannot be read), witness (messages are missing in Kafka, or
    altered, by the verdict of the witness that [witness] directory names). A broker that is away is none;
    what waits for it becomes old. Nor is a witness that has stopped, which a note says.

    Unhealthy is exit code 1, which Nagios and its kin call WARNING: sh -c 'brucectl status || exit 2' makes
    it CRITICAL.

    With --json one document of version 1: taken, healthy, unhealthy (condition, sentence), spool, watermarks,
    received, delivered, discarded, backlog, full, disk, lost_inputs, workers, brokers, trouble,
    dead_lettered, acknowledgements, kafka, lent, unadopted, held, rates, topics, topics_estimated, oldest,
    room, last_trouble, awaited (topics that are not there yet), witness.
    """
    from cli.inspect.records import parse_length
    from cli.status.report import look_once, status_lines
    from cli.terminal.output import show_json, show_rows, terminal
    from spool.native.kernel import interpret_at_first
    from status.health import Limits, complaints

    limits = Limits(parse_length("--max-age", max_age), parse_length("--full-within", full_within))
    directory, options, witness = configured(spool, config)
    interpret_at_first()
    with file_errors():
        report = look_once(directory, options, witness)
    unhealthy = complaints(report, limits)
    if as_json:
        show_json(report.as_json(unhealthy))
    elif (console := terminal()) and console.is_terminal:
        from cli.status.screens import show_screen

        show_screen(report, unhealthy, console)
    else:
        show_rows((), status_lines(report, unhealthy))
    raise typer.Exit(errors.FOUND if unhealthy else errors.FINE)


def configured(spool: Path | None, config: Path | None) -> tuple[Path, SpoolOptions | None, Witness | None]:
    """The directory that is meant; its options and the witness where it is the configured one.

    Raises ConfigError.
    """
    if spool is not None:
        return spool, None, None
    from cli.config.config import load_config
    from status.witness import Witness

    chosen = load_config(config)
    place = chosen.witness.directory
    return chosen.spool.directory, chosen.spool, Witness(place) if place else None


def top(*, spool: SpoolDirectory = None, config: ConfigFile = None) -> None:
    """Watch a spool: rates as they change, by topic and by broker, what waits, and whether all is well.

    A look each second; a chart has a character for each, scaled to its own highest of two minutes. "in" is
    what was stored, "out" what was delivered or discarded; by topic it is not known while topics are
    estimated (~). "waits from" is the first message that waits for a broker, by sequence number. Unhealthy is
    what `brucectl status` calls so.

    Keys: q ends, p pauses and goes on, r, b and n sort topics by rate, backlog and name. Needs a terminal;
    for a pipe there is `brucectl status --json`. Nothing is written to the spool.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadArgument(
            "top needs a terminal to show and to hear keys; for a pipe there is `brucectl status`"
        )
    from cli.status.figures import Top, Watcher

    with file_errors(), Watcher(*configured(spool, config)) as watcher:
        # Before the screen is taken: what cannot be looked at at all is said on it.
        state = Top()
        state.add(watcher.look())
        _show_top(watcher, state)


def _show_top(watcher: Watcher, state: Top) -> None:
    from rich.console import Console
    from rich.live import Live

    from cli.status.screens import Keys, screen

    console, due = Console(), time.monotonic() + EACH_S
    with (
        suppress(KeyboardInterrupt, EOFError),
        Keys(sys.stdin.fileno()) as keys,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            live.update(screen(state, console.size), refresh=True)
            pressed = keys.read(due - time.monotonic())
            if "q" in pressed:
                return
            for key in pressed:
                _obey(state, key)
            if time.monotonic() >= due:
                due = time.monotonic() + EACH_S
                if not state.paused:
                    state.add(watcher.look())


def _obey(state: Top, key: str) -> None:
    from cli.status.figures import Order

    if key in _ORDERS:
        state.order = Order(_ORDERS[key])
    elif key in "p ":
        state.paused = not state.paused
