"""Finding one message by its number, in a log that is whole, damaged, compressed or in pieces."""

from __future__ import annotations

from pathlib import Path

from spool.files import Unreadable, list_files
from spool.format import HEAD_BYTES
from spool.locate import Located, locate
from spool.wire import encode
from tests.spool.rig import Rig


def fill(rig: Rig, bursts: int) -> None:
    """Bursts of ten messages; the value of each is its number."""
    for burst in range(bursts):
        rig.append([encode(b"t", b"%d" % number) for number in range(10 * burst, 10 * burst + 10)])
        rig.step()


def value(found: Located | Unreadable | None) -> bytes:
    """Of the message that was found."""
    assert isinstance(found, Located)
    assert int(found.batch.sequence[found.row]) == int(found.head["first_sequence"]) + found.row
    return found.batch.value(found.row)


def test_every_message_is_found(rig: Rig) -> None:
    """In sealed segments and in the one in use; behind the last there is nothing."""
    fill(rig, 60)
    files = list_files(rig.layout)
    assert len(files) > 3
    for sequence in range(600):
        assert value(locate(files, sequence)) == b"%d" % sequence
    assert locate(files, 600) is None
    sealed = {found.sealed for n in (0, 599) if isinstance(found := locate(files, n), Located)}
    assert sealed == {True, False}


def test_a_single_file(rig: Rig, tmp_path: Path) -> None:
    """A segment under any name; what is before and behind it is not there, nor is it in another file."""
    fill(rig, 60)
    first, second = rig.layout.list_segments()[:2]
    bare, letter = tmp_path / "anything", tmp_path / "letter"
    bare.write_bytes(rig.layout.segment(*second).read_bytes())
    letter.write_text("dear reader")
    assert value(locate([letter, bare], second[0])) == b"%d" % second[0]
    assert locate([bare], first[0]) is None
    assert locate([letter], 0) is None


def test_what_is_damaged_is_said_to_be(rig: Rig) -> None:
    """Of a message in a damaged frame: which file, and where. Those around it are found."""
    fill(rig, 6)
    (path,) = list_files(rig.layout)
    good = locate([path], 25)
    assert isinstance(good, Located)
    with path.open("r+b") as file:
        file.seek(good.offset + HEAD_BYTES + 8)
        file.write(b"rot")
    for sequence in range(20, 30):
        assert locate([path], sequence) == Unreadable(path, good.offset, 10)
    assert value(locate([path], 19)) == b"19"
    assert value(locate([path], 30)) == b"30"
