"""Messages of blocks, read once more; their records are in tests/real_kafka/test_witness.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyroaring import BitMap64

from pipeline.source.plan import plan_spools
from pipeline.witness import reread
from pipeline.witness.expected import Spools, SpoolSide
from pipeline.witness.kafka_tier import Place
from pipeline.witness.reread import Altered, Messages, altered_of, read_messages
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


def side_of(spool: SpoolFixture) -> SpoolSide:
    """As a witness sees it."""
    (side,) = Spools([str(spool.layout.directory)]).look()
    return side


def test_messages_are_those_of_the_blocks(spool: SpoolFixture) -> None:
    """Over segments, with the hashes that the independent reader has, and their topics; without discards."""
    (plan,) = plan_spools([str(spool.layout.directory)])
    found = read_messages(plan, np.array([0, 2]), BitMap64([1, BLOCK + 1]))
    wanted = [0, *range(2, BLOCK), *range(2 * BLOCK, 3 * BLOCK)]
    assert found.sequences.tolist() == wanted
    assert found.sent_ms.tolist() == [max(one, 1) for one in wanted]
    assert found.topics == {"t0", "t1", "t2"}
    assert found.of(2).sequences.tolist() == list(range(2 * BLOCK, 3 * BLOCK))
    datagrams = dict(message for segment in spool.segments() for message in segment.messages())
    for at in (0, 1, BLOCK - 1, BLOCK, 2 * BLOCK - 2):
        message = plain.parse_datagram(datagrams[wanted[at]])
        assert isinstance(message, plain.Message)
        assert int(found.contents[at]) % (1 << 64) == plain.content(message)


def test_of_a_segment_that_is_gone_nothing_is_known(spool: SpoolFixture) -> None:
    """A block that began in it cannot be compared message by message any more; Kafka is not asked."""
    leave(spool, 1)
    side = side_of(spool)
    assert side.begin > 0
    place = Place({"bootstrap.servers": "127.0.0.1:1"})
    assert altered_of(side, np.array([0]), place) == Altered([], [0])


def test_no_more_blocks_are_read_than_some(spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror may have altered all of 10^9 messages."""
    monkeypatch.setattr("pipeline.witness.reread.Search", Sound)
    place = Place({"bootstrap.servers": "127.0.0.1:1"})
    assert altered_of(side_of(spool), np.array([0, 1, 2]), place, most=2) == Altered([], [2])


def test_a_cluster_that_is_away_tells_nothing(spool: SpoolFixture) -> None:
    """The block is altered; which message is not known now. An archive is no cluster."""
    side, blocks = side_of(spool), np.array([0, 2])
    place = Place({"bootstrap.servers": "127.0.0.1:1"})
    assert altered_of(side, blocks, place, answer_s=0.2) == Altered([], [0, 2])
    assert altered_of(side, blocks, None) == Altered([], [0, 2])


class Sound:
    """A search that finds nothing altered among the messages that it is given."""

    def __init__(self, *_: object) -> None:
        """Of any spool."""

    def find(self, messages: Messages) -> list[int]:
        """Nothing differs."""
        return [] if len(messages.sequences) else [-1]

    def close(self) -> None:
        """Nothing is open."""


def test_a_block_with_damage_is_not_called_unaltered(
    spool: SpoolFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The altered message may be the one that cannot be read: the block is named, and no other is held up."""
    side, place = side_of(spool), Place({"bootstrap.servers": "127.0.0.1:1"})
    monkeypatch.setattr(reread, "Search", Sound)
    assert altered_of(side, np.array([0, 1]), place) == Altered([], [])
    frame = spool.segments()[0].frames[3]
    path = spool.layout.segment(*spool.layout.list_segments()[0])
    data = bytearray(path.read_bytes())
    data[frame.offset + 40] ^= 0xFF
    path.write_bytes(data)
    assert altered_of(side, np.array([0, 1]), place) == Altered([], [0])
