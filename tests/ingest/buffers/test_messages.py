"""The table of a burst: the store loop does not ask where its messages came from."""

from __future__ import annotations

import os

import numpy as np

from ingest.access import NO_ID, TCP_GID
from ingest.buffers.messages import image, new_messages
from spool.format.segment_format import MAX_BURST
from spool.format.wire import Reason, encode
from spool.native.memory import address_of
from spool.shared.histogram import DATAGRAM, SIZE_WORDS, STREAM, TCP, read_by_input
from spool.shared.state import Field
from tests.ingest.intake import Intake

SMALL, LARGE, TRUNCATED = encode(b"t", b"1"), encode(b"t", b"v" * 5000), b"\xff" * 70_000


def test_datagrams_are_listed(intake: Intake) -> None:
    """Each with its bytes, in one piece or two, its sender, and what the kernel says against it."""
    intake.queue([SMALL, LARGE, TRUNCATED])
    table = intake.worker._messages[: intake.list_received()]
    assert table["length"].tolist() == [len(SMALL), len(LARGE), 65536]
    assert (table["rest"] == 0).tolist() == [True, False, False]
    assert table["refused"].tolist() == [0, 0, Reason.TRUNCATED]
    assert set(table["input"].tolist()) == {DATAGRAM}
    assert {tuple(row) for row in table[["pid", "uid", "gid"]].tolist()} == {
        (os.getpid(), os.getuid(), os.getgid())
    }
    kept = (SMALL, LARGE, TRUNCATED[:65536])
    assert image(table) == b"".join(len(data).to_bytes(4, "little") + data for data in kept)


def test_messages_of_all_inputs_share_a_burst(intake: Intake) -> None:
    """One frame holds them in the order of the table, each with its sender, and counts each for its input."""
    intake.queue([SMALL, LARGE])
    used = intake.list_received()
    table, data = intake.worker._messages, np.frombuffer(encode(b"t", b"streamed"), np.uint8)
    for row in table[used : used + 2]:
        row["at"], row["first"], row["rest"], row["length"] = address_of(data), len(data), 0, len(data)
        row["uid"], row["pid"], row["gid"] = NO_ID, NO_ID, TCP_GID
        row["input"], row["refused"] = TCP, 0
    table[used + 1]["input"], table[used + 1]["refused"] = STREAM, Reason.BAD_SIZE
    intake.spool.step()
    intake.worker._store(used + 2, 0)
    (frame,) = intake.frames()
    assert intake.stored() == [SMALL, LARGE, data.tobytes()]
    assert frame.uids == [os.getuid(), os.getuid(), NO_ID]
    assert intake.refused() == {"bad_size": 1}
    words = intake.spool.shared.words[Field.SIZES :][:SIZE_WORDS]
    assert read_by_input(words) == {
        "datagram": (2, 0),
        "stream": (0, 1),
        "tcp": (1, 0),
        "kafka": (0, 0),
    }


def test_a_table_has_room_for_every_burst() -> None:
    """As many rows as a frame may have messages."""
    assert len(new_messages()) == MAX_BURST
