"""To Kafka: windows, partitions and brokers, and librdkafka behind them.

    Batch ─send─► Pool ─hand_over─► librdkafka ─► brokers
                   │                    │
    Outcomes ◄─collect──────────────────┘  one report per message, by sequence

`Pool` is what the router sees: it hands messages over while their broker's window has room, holds
back the partitions that have none, and returns an outcome for every message that it took. The unit of
order is the topic partition. No Python runs per message; the loops are kernels (`handover`, `records`)
over the tables in `tables`. `records` has delivery reports, and records that are no messages of the log.

`KafkaClient` owns the librdkafka producer, `Cluster` is one picture of the metadata, `retry.decide` says
what an error means, and `EmbeddedKafka` is a Kafka for tests and demonstrations. Only
`dispatch.librdkafka` knows the library's C interface.

Read `pool`, then `handover` and `records`, then `client`. `diagnosis` says what is wrong with a connection,
`consumer` reads from Kafka, `options` has what can be set, `topic_settings` what Kafka does with late
messages. transactions/ delivers exactly once. router, pipeline and cli import dispatch; dispatch imports
spool only.
"""
