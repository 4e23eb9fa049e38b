"""From the spool to the brokers: which partition, when, and what became of it.

The router reads committed messages in order, chooses a partition for each, hands them to dispatch, and
records what was acknowledged. It has no queue: messages that cannot go now are read from the log again later.
Read `router` first (the loop), then `scheduler` (which reader reads next), `catch_up` (the second reader),
`unreadable` (ranges that the disk does not give) and `failures`. `partition`, `partition_history` and
`limits` say where, by what counts and how fast; `context` has all that they are given, `lease` and
`outcome_import` belong to delivery by jobs on Spark. Below the modules, which import them:

    cluster/    what is known of Kafka: metadata, unknown topics, brokers, why nothing can be sent
    outcomes/   what becomes of messages: marks, progress of transactions, discards, eviction

Delivery by jobs on Spark has `lease` and `outcome_import`: for the process that owns `delivery/`, while it
hands nothing over to Kafka.

cli and pipeline import the router; `build` puts it together, and has an example. All times are in `timing`.

Its errors are here, for those that only name them:

RouterError
  BadPartitioner   a partitioner's name is unknown, or its function cannot be loaded
"""


class RouterError(Exception):
    """Anything the router refuses."""


class BadPartitioner(RouterError):
    """A partitioner's name is unknown, or its function cannot be loaded."""
