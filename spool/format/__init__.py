"""The bytes of messages and segments: encode, verify and decode them. Nothing here decides what is committed.

    wire             a datagram, as programs send it
    segment_format   a segment file: header, frames, footer; where it is specified
    frame            frames as compiled loops see them: finish, verify, walk, find
    segment          a segment file's life: spare, in use, sealed
    scan, damage     reading a segment from its file, and what a reader does where it is damaged
    contents         what the frames of a segment hold, as its footer has it
    batch            stored bytes to columns: the batches in which messages travel through bruce
    topic_table      topic names by number
    packed           sealed segments, compressed
    version_1        segments of version 1
    head_scan        frames that were verified before, read by their heads

Read `wire`, `segment_format`, `frame`, `scan`. Imports from `native` and `storage`; everything above may
import from here.

    fields = decode_header(read_at(fd, HEADER_BYTES, 0), path)
"""
