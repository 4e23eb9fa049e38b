"""The owner's side of the log: appending, committing, retention, recovery.

    writer      the end of the log, as its one appender has it; never waits for the disk
    committer   syncs, names, indexes and then announces what was written; handles a failed sync
    group_commit    the same in a compiled loop, while the keeper waits, for what is ordinary
    keeper      the process that waits for the disk: spares ahead of need, sealing, retention
    retention   which delivered segments go, how much room is left, and the packing of sealed segments
    recovery    opening a spool after its last owner: what another boot left is sealed behind its last good
                frame; within one boot `writer` goes on where `index.log_end` finds the end
    quotas      shares of topics
    intake_totals   messages by uid; messages refused at intake, by topic and reason

Read `writer`, `committer`, `keeper`, `recovery`. Imports from `index`, `shared` and below; the ingest worker
and the supervisor import from here.

    spool = open_spool(options)
    writer = Writer(spool.layout, spool.identity, shared)
"""
