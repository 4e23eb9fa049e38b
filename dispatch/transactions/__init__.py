"""Delivery in transactions: exactly once, also across a crash between Kafka's commit and ours.

Read `exactly_once` first: the pool, and the phases of a transaction. `runner` does what waits for brokers, in
a thread of its own. `progress` is the record that each transaction carries, `progress_topic` where it is and
how a successor finds it, `closing` ends the transactions of jobs that died. `make_pool` makes the pool of a
delivery mode. The folder imports the rest of dispatch, which does not import it; router, pipeline and cli do.

    client, pool = make_pool(options, topics, book, spool_uuid, wakeup)
"""
