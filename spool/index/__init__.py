"""Which segments a log has, how far it is committed, and where to enter it.

    segment_list   the segment files of a spool, each header read once
    log_end        the last segment, and where the log goes on behind it
    committed      how far the log is committed: a file of two slots
    index          LMDB: entry points for readers
    environment    an LMDB environment that is opened without harm, or created again
    soundness      whether an LMDB file can be opened without harm
    headers        damaged headers: where such a segment begins, and a new header for it
    identity       the uuid of a spool, and its secret

Read `segment_list`, then `committed`. Imports from `format` and below; `marks`, `log`, `read` and
`fsck` import from here.

    number, tail = read_committed(layout.index)
"""
