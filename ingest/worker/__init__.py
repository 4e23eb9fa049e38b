"""The ingest worker: the one process that appends to the log.

Read `worker` first: its loop, and the recovery of messages that a killed predecessor received. `burst` is the
compiled loop that receives datagrams, and stores messages of all inputs; `guard` is the thread that receives
while a store waits for the disk. `cli.daemon.compiling` compiles all of it before the fork.

`cli.daemon` builds it, and the supervisor forks it. It imports `buffers`, `access` and `errors`,
and nothing of the stream worker.

    worker = IngestWorker(receiver, staging, writer, ledger, bell=bell, last_reader=True)
    end_when_told(worker)
    worker.run()
"""
