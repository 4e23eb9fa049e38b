"""The Kafka input: a process to which any Kafka client can produce, as to a broker.

Read `kafka_worker` first: its loop. `clients` are its connections; `protocol` answers their requests,
`produce` reads the frequent one. `storing` brings a request into the log: by `record_batch` and `compression`
its records become messages in a lane (`lanes`), which the ingest worker stores; `producers` knows what was
stored before. `topics` are those of the real cluster, as far as it is known here; `delivered` reads the marks
for inputs whose answers wait for Kafka.

`cli.daemon` builds it. It imports `buffers`, `sockets`, `pause` and `errors`, and no other worker.
"""
