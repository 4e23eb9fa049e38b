"""The stream worker: the process that accepts connections and receives from them.

Read `stream_worker` first: its loop. `newcomers` are accepted connections that wait for a buffer, `users` are
the shares of connections and memory, and the log lines about refused senders.

`cli.daemon` builds it, and the supervisor forks it. It imports `buffers`, `sockets`, `pause` and
`errors`, and nothing of the ingest worker: it offers messages, and that one stores them.

    worker = StreamWorker(listeners, buffers, store, page)
    end_when_told(worker)
    worker.run()
"""
