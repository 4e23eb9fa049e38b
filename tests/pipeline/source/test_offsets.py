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
from tests.spool.rig import Rig
from tests.spool.stored import pack_file


def places(*rigs: Rig, fail_on_loss: bool = True) -> StreamOffsets:
    """As a process that has just started has them."""
    paths = [str(rig.layout.directory) for rig in rigs]
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


def change(rig: Rig, chance: random.Random) -> None:
    """Perhaps more messages, perhaps a segment that is packed or called sent."""
    if chance.random() < 0.5:
        rig.fill(chance.randrange(1, 12), messages=chance.randrange(1, 6))
        rig.step()
    if chance.random() < 0.2 and len(sealed := rig.layout.list_segments()[:-1]):
        path = rig.layout.segment(*chance.choice(sealed))
        if chance.random() < 0.5:
            with suppress(BadSpool):  # it is packed already
                pack_file(path)
        else:
            path.rename(path.with_suffix(SENT))


@pytest.mark.parametrize("seed", range(5))
def test_batches_are_the_log(rig: Rig, second_rig: Rig, seed: int) -> None:
    """Each message is in one batch, whatever is appended, sealed, packed or called sent in between.

    A batch that is planned again, by another process, has the same messages.
    """
    chance = random.Random(seed)
    read: dict[str, list[int]] = {}
    offset: Offset = {}
    found = places(rig, second_rig)
    for _ in range(40):
        one = chance.choice((rig, second_rig))
        change(one, chance)
        if chance.random() < 0.2:
            found = places(rig, second_rig)
        end = found.latest(offset, chance.choice((None, 1, 3000, 20_000)))
        got = batch(found, offset, end)
        assert batch(places(rig, second_rig), offset, end) == got
        for spool, numbers in got.items():
            read.setdefault(spool, []).extend(numbers)
        offset = end
    end = found.latest(offset, None)
    for spool, numbers in batch(found, offset, end).items():
        read.setdefault(spool, []).extend(numbers)
    for one in (rig, second_rig):
        assert read.get(one.identity.spool.hex(), []) == list(range(one.synced))
    assert found.latest(end, None) == end
    assert found.parts(end, end) == []


def test_a_batch_has_its_size(rig: Rig) -> None:
    """With a limit a batch is about that large, and never empty."""
    rig.fill(200, messages=5)
    rig.step()
    found, offset, sizes = places(rig), {}, []
    while (end := found.latest(offset, 20_000)) != offset:
        sizes.append(sum(map(len, batch(found, offset, end).values())))
        offset = end
    assert sum(sizes) == 1000
    assert len(sizes) > 4
    assert max(sizes) < 300


def test_now_is_now(rig: Rig, second_rig: Rig) -> None:
    """Messages after the stream's end was fixed are not part of it, new spools included."""
    rig.fill(3)
    rig.step()
    found = places(rig, second_rig)
    found.stay()
    rig.fill(40)
    second_rig.fill(1)
    for one in (rig, second_rig):
        one.step()
    end = found.latest({}, None)
    assert batch(found, {}, end) == {rig.identity.spool.hex(): list(range(9))}
    assert found.latest(end, None) == end
    assert set(batch(found, end, places(rig, second_rig).latest(end, None))) == {
        one.identity.spool.hex() for one in (rig, second_rig)
    }


def test_retention_ahead_of_the_stream(rig: Rig) -> None:
    """Messages that went before they were read are an error that counts them, or left out when allowed."""
    rig.fill(5)
    rig.step()
    offset = places(rig).latest({}, None)
    rig.fill(100)
    rig.step()
    kept = rig.layout.list_segments()
    for pair in kept[:2]:
        rig.layout.segment(*pair).unlink()
    gone = kept[2][0] - 15
    with pytest.raises(
        JobFailed, match=rf"^{gone} messages from 15 on were removed from \S+ before the stream"
    ):
        places(rig).latest(offset, None)
    lenient = places(rig, fail_on_loss=False)
    end = lenient.latest(offset, None)
    assert batch(lenient, offset, end) == {rig.identity.spool.hex(): list(range(kept[2][0], 315))}
    # Messages read before it went are no loss.
    rig.layout.segment(*kept[2]).unlink()
    place = {"segment": 4, "position": 384, "sequence": kept[3][0], "stored": kept[3][0]}
    assert places(rig).latest({rig.identity.spool.hex(): place}, None) == end


def test_a_spool_that_went(rig: Rig, second_rig: Rig) -> None:
    """A spool that is at none of the paths any more is named; without failOnDataLoss the others go on."""
    for one in (rig, second_rig):
        one.fill(1)
        one.step()
    offset = places(rig, second_rig).latest({}, None)
    rig.fill(1)
    rig.step()
    with pytest.raises(JobFailed, match=f"spool {second_rig.identity.spool.hex()} is at none of the paths"):
        places(rig).latest(offset, None)
    lenient = places(rig, fail_on_loss=False)
    end = lenient.latest(offset, None)
    assert batch(lenient, offset, end) == {rig.identity.spool.hex(): [3, 4, 5]}
    assert end.keys() == offset.keys()


def test_an_index_that_is_behind(rig: Rig, tmp_path: Path) -> None:
    """A stream never goes back, also when the index does, as after the start of a daemon."""
    rig.fill(2)
    rig.step()
    shutil.copytree(rig.layout.index, tmp_path / "before")
    rig.fill(2)
    rig.step()
    offset = places(rig).latest({}, None)
    rig.crash()
    shutil.rmtree(rig.layout.index)
    shutil.copytree(tmp_path / "before", rig.layout.index)
    assert places(rig).latest({}, None) != offset
    assert places(rig).latest(offset, None) == offset


def test_a_damaged_header_is_in_one_batch(rig: Rig) -> None:
    """In that which passes its place, however little each has; the last one waits until the log goes on."""
    rig.fill(120)
    rig.step()
    for first, suffix in (rig.layout.list_segments()[2], rig.layout.list_segments()[-1]):
        with rig.layout.segment(first, suffix).open("r+b") as file:
            file.write(b"xx")
    found, offset, damaged, messages = places(rig), {}, [], 0
    while (reached := found.latest(offset, 3000)) != offset:
        for part in found.parts(offset, reached):
            if isinstance(part, DamagedFile):
                damaged.append(part.number)
            else:
                messages += sum(len(piece.batch) for piece in SegmentReading(part).pieces())
        offset = reached
    assert damaged == [3]
    assert 0 < messages < 360


def test_where_it_stands_may_be_learned_late(rig: Rig, second_rig: Rig) -> None:
    """PySpark before 4.2 may ask how far to go before it says how far a stream has been (availableNow).

    When a directory is missing just then, nothing is read and nothing forgotten: that ends the query, before
    its next batch. Else it goes on from there, also where it was not asked how far to go.
    """
    rig.fill(3)
    second_rig.fill(2)
    rig.step()
    second_rig.step()
    been = WholeStream(places(rig, second_rig), SCHEMA, "permissive").latestOffset()
    rig.fill(1)
    rig.step()
    for asked in (True, False):
        stream = WholeStream(places(rig, second_rig), SCHEMA, "permissive")
        end = stream.latestOffset() if asked else None
        assert stream.partitions(been, been) == []
        assert end is None or end == stream.latestOffset()
        assert batch(places(rig, second_rig), been, stream.latestOffset()) == {
            rig.identity.spool.hex(): [9, 10, 11]
        }
    behind = WholeStream(places(rig), SCHEMA, "permissive")
    behind.latestOffset()
    with pytest.raises(JobFailed, match="does not go as far as this stream has been"):
        behind.partitions(been, been)
    careless = WholeStream(places(rig, fail_on_loss=False), SCHEMA, "permissive")
    careless.latestOffset()
    assert careless.partitions(been, been) == []


def test_it_never_goes_back(rig: Rig, tmp_path: Path) -> None:
    """A stream before PySpark 4.2 stays at its position while its spool does not go as far."""
    rig.fill(1)
    rig.step()
    before = shutil.copytree(rig.layout.directory, tmp_path / "before")
    rig.fill(1)
    rig.step()
    been = WholeStream(places(rig), SCHEMA, "permissive").latestOffset()
    stream = WholeStream(
        StreamOffsets([str(before)], None, delivered=False, fail_on_loss=True), SCHEMA, "permissive"
    )
    assert stream.partitions(been, been) == []
    assert stream.latestOffset() == been
