"""The bytes of messages and segments: encode, verify and decode them. Nothing here decides what is committed.

    wire, batch, topic_table   a datagram, as programs send it; stored bytes to columns; topic names by number
    segment_format, version_1  a segment file: header, frames, footer, as specified; the same in version 1
    frame, contents            frames as compiled loops see them; what they hold, as the footer has it
    segment, packed            a segment's file: spare, in use, sealed; sealed and compressed
    scan, head_scan, damage    reading it: verified; by its heads, once verified; where it is damaged

Read `wire`, `segment_format`, `frame`, `scan`. Imports from `native` and `storage`; all above may import it.

    fields = decode_header(read_at(fd, HEADER_BYTES, 0), path)
"""
