"""`bruce run`: the daemon."""

from __future__ import annotations

import logging
import sys

from cli.arguments import ConfigFile, examples

EXAMPLES = examples(
    "bruce run --config /etc/bruce/bruce.toml",
    "bruce run",
    "BRUCE_SPOOL_DIRECTORY=/tmp/spool BRUCE_KAFKA_BOOTSTRAP_SERVERS=localhost:9092 bruce run",
)


def run(config: ConfigFile = None) -> None:
    """Take messages in, keep them, and deliver them, until SIGTERM or SIGINT.

    Without a configuration file and without BRUCE_KAFKA_BOOTSTRAP_SERVERS it runs for a first try, on an
    embedded Kafka that lives in memory and forgets everything when bruce ends.
    """
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(name)s[%(process)d] %(levelname)s: %(message)s",
    )
    from cli.config import load_config
    from cli.daemon import Daemon

    chosen = load_config(config)
    log = logging.getLogger("bruce")
    if chosen.first_try:
        log.warning("no configuration: delivering to an EMBEDDED Kafka, which forgets everything at the end")
    daemon = Daemon(chosen)
    log.info(
        "listening on %s, spool in %s, delivering to %s",
        chosen.ingest.datagram_socket,
        chosen.spool.directory,
        daemon.config.dispatch.kafka["bootstrap.servers"],
    )
    daemon.run()
    log.info("stopped")
