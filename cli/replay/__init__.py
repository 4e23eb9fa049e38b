"""Messages sent at a command: `brucectl replay` to Kafka again, `drain` to Kafka now, `send` to a daemon.

Read `replay` first: `Replay` sends what the spool still keeps, `Resend` what the discard file has. `state`
has the order (which messages) and what a replay that was interrupted needs to go on; `connection` joins
spool, router and dispatch for one replay; `sending` hands datagrams to a daemon through its sockets. `drain`
waits until a spool is empty: it watches a daemon that lives, or does its work.

Commands may import this folder. It imports `daemon` (`delivery`), `config`, `inspect` (`records`),
`status` and `terminal`.

    replay = Replay(config, Order(since="-2h", topics=["clicks"]), default_directory())
    result = replay.send(progress.show, timeout_s=None)
"""
