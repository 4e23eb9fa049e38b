"""The findings of a check, and how to spoil a spool."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from spool.format.segment_format import HEADER, HEADER_BYTES
from spool.fsck.check import Check
from spool.fsck.finding import Finding, Kind, Severity
from spool.layout import Layout
from spool.native.digest import digest
from tests.spool import plain


def check(layout: Layout) -> list[Finding]:
    """The findings of a check of a whole spool."""
    return list(Check().spool(layout))


def damages(found: list[Finding]) -> list[tuple[Kind, str]]:
    """(kind, file name) of the damage."""
    return [(f.kind, f.path.name) for f in found if f.severity is Severity.DAMAGE]


def path_of(layout: Layout, at: int) -> Path:
    """The path of a segment by its place."""
    return layout.segment(*layout.list_segments()[at])


def patch(path: Path, offset: int, data: bytes) -> None:
    """Overwrite bytes."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Flip one bit."""
    patch(path, offset, bytes([path.read_bytes()[offset] ^ 1 << bit]))


def frames_of(path: Path) -> list[plain.Frame]:
    """The frames of a segment, as the second reader sees them."""
    return plain.read_segment(path.read_bytes()).frames


def rewrite_header(path: Path, **fields: object) -> None:
    """Change header fields, and set a right check."""
    record = np.frombuffer(path.read_bytes()[:HEADER_BYTES], HEADER).copy()
    for name, value in fields.items():
        record[name] = value
    record["check"] = digest(record.tobytes()[:-8])
    patch(path, 0, record.tobytes())
