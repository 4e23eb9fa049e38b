"""To Kafka: windows, partitions and brokers, and librdkafka behind them.

    Batch ─send─► Pool ─hand_over─► librdkafka ─► brokers
    Outcomes ◄─collect─────────────────┘  one report per message, by sequence

`Pool` hands messages over while their broker's window has room, holds back the partitions that have none, and
returns an outcome for every message that it took. No Python runs per message: the loops are kernels over the
tables in `tables`. Read `pool`, `handover` and `records`, then `client`; `retry` says what an error means,
`diagnosis` what is wrong with a connection, `topic_settings` what Kafka does with late messages, `timing` how
long anything waits; `consumer` reads from Kafka, `record_consumer` as columns, `embedded` is one for tests;
only `librdkafka` knows the C interface. transactions/ delivers exactly once. router, pipeline and cli import
dispatch; dispatch imports spool only.
"""
