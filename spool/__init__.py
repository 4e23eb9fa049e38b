"""The spool: a log of datagrams on local disk, the only queue between a program and Kafka.

Every part of it keeps these rules:

- Segments are the truth. The index is derived from them and may be deleted, rotten or behind; the marks
  may be lost, which costs duplicates and never a message.
- The appender never waits for the disk, and the keeper, which syncs, never appends.
- A frame is there whole or not at all: its digest is stored last, and seeded with the digest before it.
- Nothing is announced before it is as durable as the announcement says.
- No length is believed before it is bounded; no file is mapped before its blocks are reserved.

How a message lives here, and where to read on:

    written     a frame in the mapping of the live segment          log.writer, format.frame
    committed   synced, named, indexed, then announced              log.keeper, log.committer, index
    read        by pread, verified, as columns                      read.reader, format.scan, format.batch
    delivered   resolved, and its segment called .sent              marks, log.retention
    gone        when max_bytes wants the room                       log.retention
    discarded   while there is no room: counted, not kept           shared.ledger
    set aside   unusable bytes, as they are                         storage.disk

    segment     created as a spare -> bound -> named -> full -> sealed -> sent -> removed

Beside the folders: `layout` (paths), `options` (and when a spool is full), `errors`, `throttle` (log lines),
`words`. Folders, from the bottom up: `native`, `storage`, `format`; `index` and `shared`; `marks`; `read` and
`log`; `fsck`. A folder imports only from those before it.

A daemon opens a spool with `log.recovery.open_spool`; one process then has a `Writer`, another a `Keeper`,
and they share the words of `shared.state`. Every other process reads files.
"""
