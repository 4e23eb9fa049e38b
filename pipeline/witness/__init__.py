"""The witness: it reads each topic of Kafka once, in passing, and knows what arrived of each spool.

    expected ──► judge ◄── seen ◄── tier ◄── kafka_tier, lake_tier
    (spools)       │        └── state (a file)
                   └─► report, document

Read `seen` first: of one spool, the sequences that were seen, those that were seen twice, and a sum over
each block of 4,096. `tier` takes in bursts of records; `kafka_tier` and `lake_tier` read a cluster and an
archive's table. `state` keeps all of it in a file that survives SIGKILL. `expected` has the words of the
spools, `judge` compares both without I/O. `run` is the loop, `report` the answer to an audit, for which
`reread` goes through blocks that differ.
"""
