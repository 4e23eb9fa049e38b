"""The stream worker: the process that accepts connections and receives from them.

Read `stream_worker` first: its loop. `newcomers` are accepted connections that wait for a buffer; it decides
which of them are refused. `users` has the rules, shares of connections and of memory, by which the worker
also closes connections that it receives from; and the log lines about it.

`cli.daemon` builds it, and the supervisor forks it. It imports `buffers`, `sockets`, `pause` and
`errors`, and nothing of the ingest worker: it offers messages, and that one stores them.

    worker = StreamWorker(listeners, buffers, store, page)
    end_when_told(worker)
    worker.run()
"""
