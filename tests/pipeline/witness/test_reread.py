"""Messages of blocks, read once more; their records are in tests/real_kafka/test_witness.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.witness.kafka_tier import Place
from pipeline.witness.reread import altered_of, read_messages
from spool.format.segment_format import BLOCK
from spool.format.wire import encode
from tests.pipeline.witness.spools import leave
from tests.spool import plain
from tests.spool.fixture import SpoolFixture


@pytest.fixture
def spool(tmp_path: Path) -> SpoolFixture:
    """Three blocks in several segments; the first message has the time 0."""
    spool = SpoolFixture(tmp_path, segment_bytes=1 << 17, max_bytes=16 << 20)
    for at in range(0, 3 * BLOCK, 64):
        spool.append([encode(b"t%d" % (at % 3), b"%d" % one, timestamp=one) for one in range(at, at + 64)])
        spool.step()
    spool.stop()
    return spool


def test_messages_are_those_of_the_blocks(spool: SpoolFixture) -> None:
    """Over segments, with the hashes that the independent reader has, and their topics."""
    found = read_messages(str(spool.layout.directory), np.array([0, 2]))
    assert found is not None
    wanted = [*range(BLOCK), *range(2 * BLOCK, 3 * BLOCK)]
    assert found.sequences.tolist() == wanted
    assert found.sent_ms.tolist() == [max(one, 1) for one in wanted]
    assert found.topics == {"t0", "t1", "t2"}
    datagrams = dict(message for segment in spool.segments() for message in segment.messages())
    for at in (0, 1, BLOCK - 1, BLOCK, 2 * BLOCK - 1):
        message = plain.parse_datagram(datagrams[wanted[at]])
        assert isinstance(message, plain.Message)
        assert int(found.contents[at]) % (1 << 64) == plain.content(message)


def test_of_a_segment_that_is_gone_there_are_none(spool: SpoolFixture) -> None:
    """A block that began in it cannot be compared message by message any more; the others can."""
    for first, suffix in spool.layout.list_segments():
        path = spool.layout.segment(first, suffix)
        if suffix == ".sent":
            path.rename(path.with_suffix(".seg"))
    leave(spool, 1)
    directory = str(spool.layout.directory)
    assert read_messages(directory, np.array([0])) is None
    assert read_messages(directory, np.array([2])) is not None


def test_a_cluster_that_is_away_tells_nothing(spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block is altered; which message is not known now."""
    place = Place({"bootstrap.servers": "127.0.0.1:1"})
    assert altered_of(str(spool.layout.directory), "ab" * 16, np.array([0]), place, answer_s=0.2) is None
