"""State that the processes of one daemon share, in memory and in preallocated files.

    state       the words of the shared memory: one writer for each; samples of the last hour
    histogram   message sizes and latencies, filled by compiled loops
    runtime     where runtime files are: in memory that outlives processes and not the host
    ledger      discards while the spool has no room

Read `state`, then `runtime`. Imports from `format` and below; `marks`, `read`, `log`, `fsck` and the workers
of other packages import from here.

    state = SharedState(shared_state_path(runtime_directory(), spool, boot))
    synced = state.place(Field.SYNCED)
"""
