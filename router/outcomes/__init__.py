"""The outcomes of messages: acknowledged, dead-lettered, discarded or evicted, and written down as such.

`acks` is the only writer of marks and offsets: read it first. `progress_book` is between transactions and
marks (exactly once). `rejects` has the messages that Kafka will never take, `counts` how discards and open
messages are counted. `trace` follows single messages, as `brucectl trace` asks for it through the small files
of `trace_request`. The folder imports cluster/; the router and `outcome_import` import it. The router knows
`acks` by the protocol in `outcome_table` alone, since Spark's executors import the router, and `acks` needs
LMDB. `outcome_table` also has the eviction of messages that the spool has no room for.

    acks = Acks(Marks(layout.delivery, SegmentList(layout)), segment list)
    acks.resolve(sequences, received_ns)
    acks.write_down({UNROUTED: acks.low_watermark})
"""
