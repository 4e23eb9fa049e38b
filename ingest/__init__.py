"""From local programs into the spool: sockets, receive buffers, and the processes of the daemon.

A message is safe from the instant at which recvmmsg returns it to any process: the memory that it is received
into (`ingest.buffers`) outlives all of them, and it is appended to the log from there.

Follow a datagram: `sockets.listening`, `buffers.staging`, `worker.burst`; a stream: `sockets.listening`,
`streams.newcomers`, `streams.stream_worker`, `buffers.connection_buffer`, `worker.burst`. Beside them are
`supervisor` (with `role` and `watch`), which forks and restarts the workers; `access`, who may write
to which topics; `acknowledger` (with `reply` and `outbox`), the process behind ack_socket; `pause`,
`brucectl drain --stop-intake`.

`cli` uses this package; of bruce's packages it imports `spool` alone.

    Supervisor([Role("ingest", worker.run), Role("stream", streams.run)], page).run()
"""
