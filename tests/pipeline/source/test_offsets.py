"""Offsets of a stream: whatever the batches, together they are the log, each message once and in order."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.errors import JobFailed
from pipeline.source.offsets import Offset, StreamOffsets
from pipeline.source.reader import WholeStream
from pipeline.source.schema import SCHEMA
from pipeline.source.segments import DamagedFile, SegmentReading
from spool.errors import BadSpool
from spool.layout import SENT
from tests.spool.fixture import SpoolFixture
from tests.spool.stored import pack_file


def places(*spools: SpoolFixture, fail_on_loss: bool = True) -> StreamOffsets:
    """As a process that has just started has them."""
    paths = [str(spool.layout.directory) for spool in spools]
    return StreamOffsets(paths, None, delivered=False, fail_on_loss=fail_on_loss)


def batch(found: StreamOffsets, start: Offset, end: Offset) -> dict[str, list[int]]:
    """Sequence numbers by spool, between two offsets that have been in a checkpoint."""
    start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    read: dict[str, list[int]] = {}
    for part in found.parts(start, end):
        assert not isinstance(part, DamagedFile)
        for piece in SegmentReading(part).pieces():
            read.setdefault(part.spool, []).extend(piece.batch.sequence.tolist())
    return read


def change(spool: SpoolFixture, chance: random.Random) -> None:
    """Perhaps more messages, perhaps a segment that is packed or called sent."""
    if chance.random() < 0.5:
        spool.fill(chance.randrange(1, 12), messages=chance.randrange(1, 6))
        spool.step()
    if chance.random() < 0.2 and len(sealed := spool.layout.list_segments()[:-1]):
        path = spool.layout.segment(*chance.choice(sealed))
        if chance.random() < 0.5:
            with suppress(BadSpool):  # it is packed already
                pack_file(path)
        else:
            path.rename(path.with_suffix(SENT))


@pytest.mark.parametrize("seed", range(5))
def test_batches_are_the_log(spool: SpoolFixture, second_spool: SpoolFixture, seed: int) -> None:
    """Each message is in one batch, whatever is appended, sealed, packed or called sent in between.

    A batch that is planned again, by another process, has the same messages.
    """
    chance = random.Random(seed)
    read: dict[str, list[int]] = {}
    offset: Offset = {}
    found = places(spool, second_spool)
    for _ in range(40):
        one = chance.choice((spool, second_spool))
        change(one, chance)
        if chance.random() < 0.2:
            found = places(spool, second_spool)
        end = found.latest(offset, chance.choice((None, 1, 3000, 20_000)))
        got = batch(found, offset, end)
        assert batch(places(spool, second_spool), offset, end) == got
        for uuid, numbers in got.items():
            read.setdefault(uuid, []).extend(numbers)
        offset = end
    end = found.latest(offset, None)
    for uuid, numbers in batch(found, offset, end).items():
        read.setdefault(uuid, []).extend(numbers)
    for one in (spool, second_spool):
        assert read.get(one.identity.spool.hex(), []) == list(range(one.synced))
    assert found.latest(end, None) == end
    assert found.parts(end, end) == []


def test_a_batch_has_its_size(spool: SpoolFixture) -> None:
    """With a limit a batch is about that large, and never empty."""
    spool.fill(200, messages=5)
    spool.step()
    found, offset, sizes = places(spool), {}, []
    while (end := found.latest(offset, 20_000)) != offset:
        sizes.append(sum(map(len, batch(found, offset, end).values())))
        offset = end
    assert sum(sizes) == 1000
    assert len(sizes) > 4
    assert max(sizes) < 300


def test_now_is_now(spool: SpoolFixture, second_spool: SpoolFixture) -> None:
    """Messages after the stream's end was fixed are not part of it, new spools included."""
    spool.fill(3)
    spool.step()
    found = places(spool, second_spool)
    found.stay()
    spool.fill(40)
    second_spool.fill(1)
    for one in (spool, second_spool):
        one.step()
    end = found.latest({}, None)
    assert batch(found, {}, end) == {spool.identity.spool.hex(): list(range(9))}
    assert found.latest(end, None) == end
    assert set(batch(found, end, places(spool, second_spool).latest(end, None))) == {
        one.identity.spool.hex() for one in (spool, second_spool)
    }


def test_retention_ahead_of_the_stream(spool: SpoolFixture) -> None:
    """Messages that went before they were read are an error that counts them, or left out when allowed."""
    spool.fill(5)
    spool.step()
    offset = places(spool).latest({}, None)
    spool.fill(100)
    spool.step()
    kept = spool.layout.list_segments()
    for pair in kept[:2]:
        spool.layout.segment(*pair).unlink()
    gone = kept[2][0] - 15
    with pytest.raises(
        JobFailed, match=rf"^{gone} messages from 15 on were removed from \S+ before the stream"
    ):
        places(spool).latest(offset, None)
    lenient = places(spool, fail_on_loss=False)
    end = lenient.latest(offset, None)
    assert batch(lenient, offset, end) == {spool.identity.spool.hex(): list(range(kept[2][0], 315))}
    # Messages read before it went are no loss.
    spool.layout.segment(*kept[2]).unlink()
    place = {"segment": 4, "position": 384, "sequence": kept[3][0], "stored": kept[3][0]}
    assert places(spool).latest({spool.identity.spool.hex(): place}, None) == end


def test_a_spool_that_went(spool: SpoolFixture, second_spool: SpoolFixture) -> None:
    """A spool that is at none of the paths any more is named; without failOnDataLoss the others go on."""
    for one in (spool, second_spool):
        one.fill(1)
        one.step()
    offset = places(spool, second_spool).latest({}, None)
    spool.fill(1)
    spool.step()
    with pytest.raises(JobFailed, match=f"spool {second_spool.identity.spool.hex()} is at none of the paths"):
        places(spool).latest(offset, None)
    lenient = places(spool, fail_on_loss=False)
    end = lenient.latest(offset, None)
    assert batch(lenient, offset, end) == {spool.identity.spool.hex(): [3, 4, 5]}
    assert end.keys() == offset.keys()


def test_an_index_that_is_behind(spool: SpoolFixture, tmp_path: Path) -> None:
    """A stream never goes back, also when the index does, as after the start of a daemon."""
    spool.fill(2)
    spool.step()
    shutil.copytree(spool.layout.index, tmp_path / "before")
    spool.fill(2)
    spool.step()
    offset = places(spool).latest({}, None)
    spool.crash()
    shutil.rmtree(spool.layout.index)
    shutil.copytree(tmp_path / "before", spool.layout.index)
    assert places(spool).latest({}, None) != offset
    assert places(spool).latest(offset, None) == offset


def test_a_damaged_header_is_in_one_batch(spool: SpoolFixture) -> None:
    """In that which passes its place, however little each has; the last one waits until the log goes on."""
    spool.fill(120)
    spool.step()
    for first, suffix in (spool.layout.list_segments()[2], spool.layout.list_segments()[-1]):
        with spool.layout.segment(first, suffix).open("r+b") as file:
            file.write(b"xx")
    found, offset, damaged, messages = places(spool), {}, [], 0
    while (reached := found.latest(offset, 3000)) != offset:
        for part in found.parts(offset, reached):
            if isinstance(part, DamagedFile):
                damaged.append(part.number)
            else:
                messages += sum(len(piece.batch) for piece in SegmentReading(part).pieces())
        offset = reached
    assert damaged == [3]
    assert 0 < messages < 360


def test_where_it_stands_may_be_learned_late(spool: SpoolFixture, second_spool: SpoolFixture) -> None:
    """PySpark before 4.2 may ask how far to go before it says how far a stream has been (availableNow).

    When a directory is missing just then, nothing is read and nothing forgotten: that ends the query, before
    its next batch. Else it goes on from there, also where it was not asked how far to go.
    """
    spool.fill(3)
    second_spool.fill(2)
    spool.step()
    second_spool.step()
    been = WholeStream(places(spool, second_spool), SCHEMA, "permissive").latestOffset()
    spool.fill(1)
    spool.step()
    for asked in (True, False):
        stream = WholeStream(places(spool, second_spool), SCHEMA, "permissive")
        end = stream.latestOffset() if asked else None
        assert stream.partitions(been, been) == []
        assert end is None or end == stream.latestOffset()
        assert batch(places(spool, second_spool), been, stream.latestOffset()) == {
            spool.identity.spool.hex(): [9, 10, 11]
        }
    behind = WholeStream(places(spool), SCHEMA, "permissive")
    behind.latestOffset()
    with pytest.raises(JobFailed, match="does not go as far as this stream has been"):
        behind.partitions(been, been)
    careless = WholeStream(places(spool, fail_on_loss=False), SCHEMA, "permissive")
    careless.latestOffset()
    assert careless.partitions(been, been) == []


def test_it_never_goes_back(spool: SpoolFixture, tmp_path: Path) -> None:
    """A stream before PySpark 4.2 stays at its position while its spool does not go as far."""
    spool.fill(1)
    spool.step()
    before = shutil.copytree(spool.layout.directory, tmp_path / "before")
    spool.fill(1)
    spool.step()
    been = WholeStream(places(spool), SCHEMA, "permissive").latestOffset()
    stream = WholeStream(
        StreamOffsets([str(before)], None, delivered=False, fail_on_loss=True), SCHEMA, "permissive"
    )
    assert stream.partitions(been, been) == []
    assert stream.latestOffset() == been
