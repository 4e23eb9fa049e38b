"""Stored messages into Kafka, in the order of the log: drain, run, replay.

    stored ─► undelivered ─► route ─► arrange ─► deliver (sink, on executors: carrier) ─► outcomes

Read `drain` first, which delivers a `backlog` once; `run` does the same as an endless stream, and `replay`
sends stored messages again. They share `sending`. On the driver `lease` takes delivery over from a daemon,
`route_plan` asks Kafka for its topics, and finds what transactions delivered without a mark. On the executors
`route` finds what is undelivered and chooses partitions, `sink` and `carrier` send by the daemon's router,
which reads `task_log`; `task_book` records transactions. `kafka` may import this folder, and the commands of
`cli` do.

    with open_session() as session:
        run_drain(lambda: session, ["/var/lib/bruce"], DispatchOptions(kafka=properties), partitioners={})
"""
