"""`bruce run`: the daemon; `bruce hold-socket`: its sockets, held by a process of their own."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands.arguments import ConfigFile, examples

if TYPE_CHECKING:
    from cli.daemon.daemon import Daemon

EXAMPLES = examples(
    "bruce run --config /etc/bruce/bruce.toml",
    "bruce run",
    "BRUCE_SPOOL_DIRECTORY=/tmp/spool BRUCE_KAFKA_BOOTSTRAP_SERVERS=localhost:9092 bruce run",
)
COMPILE_EXAMPLES = examples(
    "bruce compile",
    "runuser -u bruce -- env NUMBA_CACHE_DIR=/var/cache/bruce bruce compile",
)
HOLD_SOCKET_EXAMPLES = examples(
    "bruce hold-socket --config /etc/bruce/bruce.toml &",
    "bruce run --held --config /etc/bruce/bruce.toml",
)


def run(
    *,
    held: Annotated[
        bool, typer.Option("--held", help="Wait for bruce hold-socket to hand over the sockets.")
    ] = False,
    config: ConfigFile = None,
) -> None:
    """Take messages in, keep them, and deliver them, until SIGTERM or SIGINT.

    Without a configuration file and without BRUCE_KAFKA_BOOTSTRAP_SERVERS it runs for a first try, on an
    embedded Kafka that lives in memory and forgets everything when bruce ends.

    The first start of a release compiles its loops for this host, beside the workers: for half a minute
    messages are taken and delivered more slowly. `bruce compile` does it ahead.

    SIGTERM or SIGINT: senders are refused, what they sent is synced, and what is in the spool is delivered
    for at most drain_seconds, whether or not Kafka is there; the rest waits for the next start. A second one
    ends it at once; nothing is lost, and what was in flight is sent again.

    SIGHUP: read the configuration again. Messages are taken in meanwhile, and stay in order. A file with an
    error changes nothing; what takes a restart is named in the log: datagram_socket, directory,
    segment_bytes, mode. A module with a partitioner is not loaded again.

    Under systemd (Type=notify) it says when messages are taken in, how it fares, when a reload is over,
    and asks for the time that a stop takes. WATCHDOG=1 is sent only while every worker works: one whose loop
    has not turned for half of WatchdogSec is named in the status, and nothing more is sent until it does. Any
    KillMode will do. A socket that systemd holds is taken over, and keeps what is sent while bruce is down.
    If systemd holds none, bruce takes over those of `bruce hold-socket`.
    """
    from cli.daemon import logs

    logs.begin()
    log = logging.getLogger("bruce")
    # SIGTERM acts like SIGINT; a reload waits until the supervisor can do it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        daemon = _start(config, log, held=held)
    except KeyboardInterrupt:
        log.info("stopped before it had started; the next start goes on")
        return
    daemon.run()
    log.info("stopped")
    logs.end()


def _start(config: Path | None, log: logging.Logger, *, held: bool) -> Daemon:
    from importlib.metadata import version

    from cli.config.config import load_config
    from cli.daemon import logs
    from cli.daemon.daemon import Daemon
    from dispatch.options import properties

    chosen = load_config(config)
    logs.begin(chosen.log.format)
    if chosen.first_try:
        log.warning("no configuration: delivering to an EMBEDDED Kafka, which forgets everything at the end")
    daemon = Daemon(chosen, held=held)
    if chosen.first_try:
        page = f"http://127.0.0.1:{chosen.status.port}/" if chosen.status.port else "brucectl top"
        log.info("next, in another terminal: brucectl send --topic orders hello; brucectl status; %s", page)
    log.info(
        "listening on %s, spool in %s, delivering to %s; bruce %s",
        ", ".join(daemon.doors()),
        chosen.spool.directory,
        properties(daemon.config.dispatch)["bootstrap.servers"],
        version("bruce-spool"),
    )
    return daemon


def compile_loops() -> None:
    """Compile for this host what `bruce run` runs, which its first start does else; half a minute.

    For an installation: run it as the user, and with the NUMBA_CACHE_DIR, that `bruce run` will have. The
    result is kept there, else beside the installed files, or below the user's ~/.cache. It is of one release
    and one kind of processor: after an upgrade, run it again. It starts a bruce of its own for a moment, with
    a Kafka in memory, and leaves nothing of it.
    """
    from cli.daemon import logs
    from cli.daemon.compiling import compile_all

    logs.begin()
    compile_all()
    logs.end()


def hold_socket(config: ConfigFile = None) -> None:
    """Make the sockets of [ingest] and of each [[input]], and keep them for every `bruce run`, until SIGTERM.

    Bruce reads the sockets; this process never does. While bruce is stopped, upgraded or killed, all of its
    processes at once, messages and connections wait in the sockets, and senders wait when those are full.
    For containers, and for hosts without systemd; where there is systemd, bruce.socket does this.

    It takes 12 MiB of memory, runs nothing of bruce once it holds the sockets, and needs no right. Run it as
    the user that bruce runs as: its folder beside the datagram socket (bruce.sock.hold) is that user's alone,
    and nothing but that user and root is handed the sockets. In containers, share the folders of the sockets;
    a TCP port is one of this process's network.

    Start it first, and end it last. `bruce run` finds it by itself; with --held it waits for it. One bruce at
    a time reads the sockets: a second one, with another spool, names the first, and ends with exit code 2.
    Sockets that are configured later bruce makes itself; this process holds them from its own next start on.
    The same goes for another mode or group.

    A second one for the same sockets is refused. If a bruce has made them itself, this process waits for the
    end of that bruce, and then makes them. That is so after a SIGKILL of this process, too: bruce goes on
    with the sockets that it has, and a new holder waits for its end; a kill of bruce before that takes along
    what is in them.

    SIGTERM and SIGINT end it, and remove the sockets that no bruce uses any more; SIGHUP does nothing.
    """
    from cli.config.config import load_ingest
    from cli.daemon import logs
    from ingest.sockets.holding import folder_of, hold

    logs.begin()
    options = load_ingest(config)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        hold(folder_of(options.datagram_socket), options.wanted_inputs([]))
    except KeyboardInterrupt:
        logging.getLogger("bruce").info("stopped before the sockets were free")
