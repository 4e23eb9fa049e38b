"""`bruce run`: the daemon."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import ConfigFile, examples

if TYPE_CHECKING:
    from cli.daemon import Daemon

EXAMPLES = examples(
    "bruce run --config /etc/bruce/bruce.toml",
    "bruce run",
    "BRUCE_SPOOL_DIRECTORY=/tmp/spool BRUCE_KAFKA_BOOTSTRAP_SERVERS=localhost:9092 bruce run",
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

    SIGTERM or SIGINT: senders are refused, what they sent is synced, and what is in the spool is delivered
    for at most drain_seconds, whether or not Kafka is there; the rest waits for the next start. A second one
    ends it at once; nothing is lost, and what was in flight is sent again.

    SIGHUP: read the configuration again. Messages are taken in meanwhile, and stay in order. A file with an
    error changes nothing; what takes a restart is named in the log: datagram_socket, directory,
    segment_bytes, mode. A module with a partitioner is not loaded again.

    Under systemd (Type=notify) it says when messages are taken in, how things stand, when a reload is over,
    and asks for the time that a stop takes. WATCHDOG=1 is sent only while every worker works: one whose loop
    has not turned for half of WatchdogSec is named in the status, and nothing more is sent until it does. Any
    KillMode will do. A socket that systemd holds is taken over, and keeps what is sent while bruce is down.
    Where systemd holds none, those of `bruce hold-socket` are.
    """
    from cli import logs

    logs.begin()
    log = logging.getLogger("bruce")
    # As SIGINT does it; a reload waits until there is somebody who can.
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

    from cli import logs
    from cli.config import load_config
    from cli.daemon import Daemon
    from dispatch.options import properties

    chosen = load_config(config)
    logs.begin(chosen.log.format)
    if chosen.first_try:
        log.warning("no configuration: delivering to an EMBEDDED Kafka, which forgets everything at the end")
    daemon = Daemon(chosen, held=held)
    log.info(
        "listening on %s, spool in %s, delivering to %s; bruce %s",
        ", ".join(daemon.doors()),
        chosen.spool.directory,
        properties(daemon.config.dispatch)["bootstrap.servers"],
        version("bruce-spool"),
    )
    return daemon
