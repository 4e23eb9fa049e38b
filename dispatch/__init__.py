"""To Kafka: windows, partitions and brokers, and librdkafka behind them.

    Batch ─send─► Pool ─hand_over─► librdkafka ─► brokers
                   │                    │
    Outcomes ◄─collect──────────────────┘  one report per message, by sequence

`Pool` is what the router sees: it hands messages over as long as their broker's window has room, holds
back the partitions that have none, and returns an outcome for every message that it took. The unit of
order is the topic partition. No Python runs per message; the loops are kernels (`handover`, `reports`)
over the tables in `partitions`, `brokers` and `flight`.

`KafkaClient` owns the librdkafka producer, `Cluster` is one picture of the metadata, `retry.decide` says
what an error means, and `EmbeddedKafka` is a Kafka for tests and demonstrations. Only
`dispatch.librdkafka` knows the library.
"""
