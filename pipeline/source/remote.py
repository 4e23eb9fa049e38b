"""Spools at an address: pyarrow.fs reads them, since no file can be opened (s3://, gs://, hdfs://).

The needed parts of a file come into memory, at the same offsets, so that readers of segments see no
difference: for a plan its header and its footer, for a part its frames. Beside them `identity` is read, and
the marks and their pending outcomes. Without an index the good frames of a live segment count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from pipeline.errors import BadOption
from spool.errors import BadSpool, NoSpool
from spool.format.packed import header_of, is_packed, open_plain
from spool.format.segment import UNBOUND
from spool.format.segment_format import FOOTER_TAIL, HEADER_BYTES, footer_bytes
from spool.format.sums_book import MOST_BYTES
from spool.index.log_end import read_footer
from spool.layout import SEGMENT, SENT, SPARE, Layout, older, parse_name, segment_name
from spool.storage.disk import opened, write_at

_PIECE_BYTES = 8 << 20
_EDGE_BYTES = 64 << 10
"""Of a file's beginning, and of its end: a footer is rarely longer."""
_IDENTITY_BYTES = 1024
_MOST_MARKS_BYTES = 1 << 30
"""Some MB are usual."""
_AT_ONCE = 16
"""Requests: one takes some 50 ms, whatever its size."""


def is_address(path: str) -> bool:
    """Whether a path is an address, and not one of the filesystem."""
    return "://" in path


def local_path(path: str) -> str:
    """The path of a `file:` address; others as they are."""
    return unquote(urlsplit(path).path) if path.startswith("file:") else path


def shown(address: str) -> str:
    """A path or an address for display: without a password, or a query that has one."""
    return re.sub(r"\?.*|(?<=://)[^/@]*@", "", address) if is_address(address) else address


@dataclass(frozen=True, slots=True)
class Remote:
    """A spool at an address."""

    address: str
    files: fs.FileSystem
    directory: str
    """In `files`."""

    def names(self) -> list[str]:
        """Of its segments, spares included."""
        found = self.files.get_file_info(fs.FileSelector(f"{self.directory}/segments"))
        return sorted(info.base_name for info in found if parse_name(info.base_name))

    def open(self, name: str) -> pa.NativeFile:
        """A segment. Raises FileNotFoundError."""
        return self.files.open_input_file(f"{self.directory}/segments/{name}")


def remote(address: str) -> Remote:
    """The directory at an address. Raises BadOption when pyarrow does not know it, NoSpool."""
    try:
        return Remote(address, *fs.FileSystem.from_uri(address))
    except pa.ArrowInvalid as error:
        raise BadOption(f"{shown(address)} is no address that pyarrow knows: {error}") from error
    except OSError as error:
        # A host without an address, or a library that is not there.
        raise NoSpool(f"{shown(address)} cannot be reached: {error}") from error


def find_remote(pattern: str) -> list[Remote]:
    """The spools at an address, whose path may have `*` and `[...]` in it. Raises NoSpool, BadOption."""
    parts = urlsplit(pattern)
    steps = parts.path.split("/")
    plain = next((at for at, step in enumerate(steps) if set("*[") & set(step)), len(steps))
    root = remote(parts._replace(path="/".join(steps[:plain])).geturl())
    found = []
    for step in _descend(root, root.directory.rstrip("/"), steps[plain:]):
        below = quote(step[len(root.directory.rstrip("/")) :])
        address = parts._replace(path="/".join(steps[:plain]).rstrip("/") + below).geturl()
        if _is_directory(root.files, f"{step}/segments"):
            found.append(Remote(address, root.files, step))
    if not found:
        raise NoSpool(f"{shown(pattern)} holds no spool")
    return found


def _descend(root: Remote, directory: str, steps: list[str]) -> Iterator[str]:
    if not steps:
        yield directory
        return
    if not set("*[") & set(steps[0]):
        yield from _descend(root, f"{directory}/{steps[0]}", steps[1:])
        return
    for info in sorted(root.files.get_file_info(fs.FileSelector(directory)), key=lambda info: info.path):
        if info.type == fs.FileType.Directory and fnmatchcase(info.base_name, steps[0]):
            yield from _descend(root, f"{directory}/{info.base_name}", steps[1:])


def _is_directory(files: fs.FileSystem, path: str) -> bool:
    return bool(files.get_file_info(path).type == fs.FileType.Directory)


def mirror(source: Remote, target: Path) -> None:
    """Make a spool of sparse files in `target`: of sealed segments header and footer, of others all.

    And its identity, its marks, and its books of sums, if those were copied, too. Raises BadOption for marks
    beyond all measure.
    """
    layout = Layout(target)
    layout.segments.mkdir(parents=True)
    for path in (layout.identity, layout.sums, older(layout.sums)):
        with (
            suppress(FileNotFoundError),
            source.files.open_input_file(f"{source.directory}/{path.name}") as file,
        ):
            path.write_bytes(file.read(_IDENTITY_BYTES if path == layout.identity else MOST_BYTES))
    _mirror_marks(source, layout)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda name: _mirror(source, name, target / "segments" / name), source.names()))


def _mirror_marks(source: Remote, layout: Layout) -> None:
    for directory in (layout.delivery, layout.outcomes):
        here = directory.relative_to(layout.directory)
        selector = fs.FileSelector(f"{source.directory}/{here}", allow_not_found=True)
        files = [info for info in source.files.get_file_info(selector) if info.type == fs.FileType.File]
        if sum(info.size for info in files) > _MOST_MARKS_BYTES:
            raise BadOption(f"{shown(source.address)}/{here} has more than {_MOST_MARKS_BYTES >> 20} MiB")
        directory.mkdir()
        for info in files:
            with suppress(FileNotFoundError), source.files.open_input_file(info.path) as file:
                _copy(file, directory / info.base_name)


def _copy(file: Any, path: Path) -> None:
    with path.open("wb", buffering=0) as copy:
        _bring(file, copy.fileno(), [(0, file.size())])


def _mirror(source: Remote, name: str, path: Path) -> None:
    try:
        with source.open(name) as file, path.open("wb", buffering=0) as copy:
            size = file.size()
            _bring(file, copy.fileno(), [(0, min(size, _EDGE_BYTES)), (max(0, size - _EDGE_BYTES), size)])
            if (path.suffix == SPARE and _is_unbound(path)) or _is_sealed(file, path):
                return
            _bring(file, copy.fileno(), [(0, size)])
    except FileNotFoundError:
        path.unlink(missing_ok=True)  # removed, or renamed, since it was listed


def _is_unbound(path: Path) -> bool:
    with opened(path) as file:
        try:
            return bool(header_of(file.fileno(), path)["first_sequence"] == UNBOUND)
        except BadSpool:
            return True


def _is_sealed(file: pa.NativeFile, path: Path) -> bool:
    """Fetch the footer of a sealed segment; False when there is no valid one."""
    with path.open("r+b", buffering=0) as copy:
        size = file.size()
        end = os.pread(copy.fileno(), FOOTER_TAIL.itemsize, max(0, size - FOOTER_TAIL.itemsize))
        length = footer_bytes(end)
        if _EDGE_BYTES < length <= size:
            _bring(file, copy.fileno(), [(size - length, size)])
        return read_footer(copy.fileno()) is not None


def open_remote(address: str, first_sequence: int, number: int, wanted: tuple[int, int | None]) -> int | None:
    """A descriptor of a segment in memory, the offsets [from, to) of it and its header; None: it is gone.

    `to` None: all after `from`. A packed segment is unpacked whole.
    """
    source = remote(address)
    for name, suffix in ((number, SPARE), (first_sequence, SEGMENT), (first_sequence, SENT)):
        try:
            file = source.open(segment_name(name, suffix))
        except FileNotFoundError:
            continue
        with file:
            return _fetch(file, *wanted)
    return None


def _fetch(file: Any, begin: int, end: int | None) -> int:
    size = file.size()
    fd = os.memfd_create("segment", os.MFD_CLOEXEC)
    try:
        _bring(file, fd, [(0, min(size, 2 * HEADER_BYTES))])
        if is_packed(fd):
            _bring(file, fd, [(0, size)])
            packed, fd = fd, open_plain(Path(f"/proc/self/fd/{fd}"), links=True)
            os.close(packed)
        else:
            _bring(file, fd, [(begin, size if end is None else min(end, size))])
    except BaseException:
        os.close(fd)
        raise
    return fd


def _bring(file: Any, fd: int, ranges: Iterable[tuple[int, int]]) -> None:
    """Copy ranges of a file to the same offsets of another, which gets its size."""
    os.ftruncate(fd, file.size())
    for begin, end in ranges:
        for at in range(begin, end, _PIECE_BYTES):
            write_at(fd, file.read_at(min(_PIECE_BYTES, end - at), at), at)
