"""The spool: a log of datagrams on local disk, the only queue between a program and Kafka.

What every part of it keeps to:

- Segments are the truth. The index is derived from them and may be deleted, rotten or behind; the marks
  of what was delivered may be lost, which costs duplicates and never a message.
- Whoever appends never waits for the disk, and whoever syncs never appends.
- A frame is there whole or not at all: its digest is stored last, and seeded with the digest before it.
- Nothing is announced before it is as durable as the announcement says.
- No length is believed before it is bounded; no file is mapped before its blocks are reserved.

How a message lives here, and where to read on:

    written     a frame in the mapping of the live segment          writer, frame, format
    committed   synced, named, indexed, then announced              keeper, committer, index
    read        by pread, verified, as columns                      scan, decode, record
    delivered   resolved, and its segment called .sent              marks, retention
    gone        when max_bytes wants the room                       retention
    discarded   while there is no room: counted, not kept           ledger
    set aside   what cannot be used, as it is                       quarantine

    segment     created as a spare -> bound -> named -> full -> sealed -> sent -> removed

A daemon opens a spool with `recovery.open_spool`; one process then has a `writer.Writer`, another a
`keeper.Keeper`, and they meet in the shared `page.Page`. Everybody else reads files.
"""
