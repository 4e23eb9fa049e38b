"""The library: when it counts, and where it is."""

from __future__ import annotations

import pwd
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.native import library
from tests.spool.native.tried import NUMBA, SAID, USE, file_of, run


@pytest.mark.parametrize("what", ["a source", "the processor", "no code", "torn", "empty", "another file"])
def test_a_library_that_does_not_count(package: Path, what: str) -> None:
    """It is passed over, and the loops give the same."""
    file, source = file_of(package), package / "spool" / "native" / "memory.py"
    held, text = file.read_bytes(), source.read_text(encoding="utf-8")
    found = library.unpack(held)
    assert found
    header, code = found
    try:
        if what == "a source":
            source.write_text(text + "# changed\n", encoding="utf-8")
        elif what == "the processor":
            file.write_bytes(library.pack({**header, "for": {**header["for"], "cpu": "i386"}}, code))
        elif what == "no code":
            file.write_bytes(library.pack(header, bytes(1000)))
        else:
            file.write_bytes({"torn": held[:-4096] + bytes(4096), "empty": b""}.get(what, b"\0" * 4096))
        assert run(package, USE + NUMBA) == f"{SAID}True\n"
    finally:
        file.write_bytes(held)
        source.write_text(text, encoding="utf-8")


@given(st.binary(max_size=200), st.integers(min_value=0), st.integers(0, 255))
def test_a_byte_that_is_not_as_it_was_written(code: bytes, place: int, byte: int) -> None:
    """A library is read as it was written, or not at all."""
    data = library.pack({"loops": {}}, code)
    assert library.unpack(data) == ({"loops": {}}, code)
    at = place % len(data)
    changed = data[:at] + bytes([byte]) + data[at + 1 :]
    assert library.unpack(changed) == (({"loops": {}}, code) if changed == data else None)
    assert library.unpack(data[:at]) is None


LATER = """
from spool import tried
from spool.native import kernel, linking
print(tried.share(7, 2), tried.share._loops)
linking.write([tried.share])
kernel.look_again()
print(tried.share(7, 2), len(tried.share._loops))
"""


def test_a_library_that_is_written_meanwhile(package: Path) -> None:
    """A process that found none takes its code from it, once it looks again."""
    file = file_of(package)
    held = file.read_bytes()
    file.unlink()
    try:
        assert run(package, LATER) == "3 []\n3 1\n"
    finally:
        file.write_bytes(held)


def test_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beside the source, or below the user's cache; only in NUMBA_CACHE_DIR where that is set."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    beside, home = library.places()
    assert (beside.parent.name, home.parent) == ("__pycache__", tmp_path / "bruce")
    assert library.can_be_written(home)
    assert not library.can_be_written(Path("/proc/no/where/at/all") / home.name)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", mock.Mock(side_effect=KeyError))
    assert not library.can_be_written(library.places()[1])
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "given"))
    assert library.places() == [tmp_path / "given" / home.name]
