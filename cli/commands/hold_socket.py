"""`bruce hold-socket`: the sockets, held by a process of their own."""

from __future__ import annotations

from cli.arguments import ConfigFile, examples

EXAMPLES = examples(
    "bruce hold-socket --config /etc/bruce/bruce.toml &",
    "bruce run --held --config /etc/bruce/bruce.toml",
)


def hold_socket(config: ConfigFile = None) -> None:
    """Make the sockets of [ingest] and of each [[input]], and keep them for every `bruce run`, until SIGTERM.

    Bruce reads the sockets; this process never does. While bruce is stopped, upgraded or killed, all of its
    processes at once, messages and connections wait in the sockets, and senders wait when those are full.
    For containers, and for hosts without systemd; where there is systemd, bruce.socket does this.

    It takes 12 MiB of memory, runs nothing of bruce once it holds the sockets, and needs no right. Run it as
    the user that bruce runs as: its folder beside the datagram socket (bruce.sock.hold) is that user's alone,
    and nothing but that user and root is handed the sockets. In containers, share the folders of the sockets;
    a TCP port is one of this process's network.

    Start it first, and end it last. `bruce run` finds it by itself; with --held it waits for it. Sockets
    that are configured later bruce makes itself; this process holds them from its own next start on. The
    same goes for another mode or group.

    A second one for the same sockets is refused. If a bruce has made them itself, this process waits for the
    end of that bruce, and then makes them. That is so after a SIGKILL of this process, too: bruce goes on
    with the sockets that it has, and a new holder waits for its end; a kill of bruce before that takes along
    what is in them.

    SIGTERM and SIGINT end it, and remove the sockets that no bruce uses any more; SIGHUP does nothing.
    """
    import logging
    import signal

    from cli import logs
    from cli.config import load_ingest
    from cli.inputs import wanted_inputs
    from ingest.holding import folder_of, hold
    from ingest.inputs import DATAGRAM, Input

    logs.begin()
    options = load_ingest(config)
    ack = None
    if options.ack_socket:
        ack = Input(DATAGRAM, options.ack_socket, options.socket_mode, options.socket_group)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        hold(folder_of(options.datagram_socket), wanted_inputs(options, []), ack)
    except KeyboardInterrupt:
        logging.getLogger("bruce").info("stopped before the sockets were free")
