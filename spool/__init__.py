"""The spool: a log of datagrams on local disk, the only queue between a program and Kafka.

Segments are the truth; index and marks can be lost. A segment is created as a spare, then bound, named, full,
sealed, sent, removed. Read `log.writer` (append), `log.keeper` (sync, index, announce), `read.reader`
(verified columns), `marks` (delivered). DESIGN.md has the rules that every part keeps.

Folders from the bottom up, each importing only from those before it: `native`, `storage`, `format`; `index`
and `shared`; `marks`; `read` and `log`; `fsck`. Beside them: `layout` (paths), `options` (and when a spool is
full), `errors`, `throttle` (log lines), `words`. Every package but the client of programs may import the
spool.

    spool = open_spool(options)  # of log.recovery; then one process has a Writer, another a Keeper
    writer = Writer(spool.layout, spool.identity, shared)
"""
