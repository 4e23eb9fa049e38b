"""The daemon: what `bruce run` starts.

Read `daemon` first: it opens the spool and the sockets, and starts the workers. `delivery` joins spool,
router and dispatch; `delivery_worker` runs it, lends delivery to jobs on Spark, and publishes what it does;
`delivery_log` tells the story of an outage. `status_worker` serves the status page. `compiling` makes the
compiled loops. `logs` writes the log: lines, JSON objects, or the journal.

Commands may import this folder, and `replay` may import `delivery`. It imports `config`, `status`,
`inspect` and `terminal`.

    daemon = Daemon(load_config(path))
    daemon.run()  # until SIGTERM
"""
