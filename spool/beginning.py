"""Where a segment begins whose header is damaged: its first frame, and the keys that this verifies under.

A header has the keys of its segment. With it gone they follow from the secret, which other segments and the
file `identity` of the spool have, too, and from the segment's first sequence, which is its name; or both may
be whole in what is left of the header. The keys are right if a frame verifies under them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spool.disk import opened, read_at
from spool.format import (
    HEADER,
    HEADER_BYTES,
    OLD_KEYS,
    SECRET_BYTES,
    VERSION,
    Keys,
    Record,
    decode_header,
    encode_header,
    keys_from,
)
from spool.frame import DIGEST, KEY, MARK, TAIL_FIELDS, Tail
from spool.identity import list_secrets
from spool.layout import SPARE, Layout, parse_name
from spool.live import Footer, read_footer
from spool.packed import header_at, open_plain
from spool.scan import find_frame, frame_at


class Beginning(NamedTuple):
    """The first good frame of a segment, and what its keys are made of."""

    version: int
    secret: bytes
    first_sequence: int
    """Of the segment."""
    offset: int
    """Of the frame."""
    head: Record
    """Of the frame."""

    @property
    def keys(self) -> Keys:
        """Of the segment."""
        return OLD_KEYS if self.version == 1 else keys_from(self.secret, self.first_sequence)

    def tail(self) -> Tail:
        """Before the frame; of what is before the segment only what the frame tells."""
        tail = np.zeros(TAIL_FIELDS, np.int64)
        tail[KEY], tail[MARK] = self.keys
        if self.offset == HEADER_BYTES:
            tail[DIGEST] = self.head["previous"].astype(np.int64)
        return tail

    def header(self, **fields: object) -> Record:
        """A header with these fields by which the segment can be read."""
        own = {"version": self.version, "secret": self.secret, "first_sequence": self.first_sequence}
        return decode_header(encode_header(**own | fields), "")


def remains(path: Path) -> Record:
    """The bytes in the place of a segment's header, as a HEADER record. Raises OSError."""
    with opened(path) as file:
        data = read_at(file.fileno(), HEADER_BYTES, header_at(file.fileno()))
    return np.asarray(np.frombuffer(data.ljust(HEADER_BYTES, b"\0"), HEADER)[0])


def find_beginning(path: Path) -> Beginning | None:
    """Where the segment in a file begins, its header being damaged; None if no frame in it verifies.

    Raises ReadFailed, OSError.
    """
    for version, secret, first in _candidates(path):
        keys = OLD_KEYS if version == 1 else keys_from(secret, first)
        fd = open_plain(path, keys)
        try:
            tail = np.zeros(TAIL_FIELDS, np.int64)
            tail[KEY], tail[MARK] = keys
            end = os.fstat(fd).st_size
            # A sender can make a frame of version 1, but not put it behind the header.
            offset = HEADER_BYTES if version == 1 else find_frame(fd, HEADER_BYTES, end, tail)
            if offset >= 0 and (head := frame_at(fd, offset, tail)) is not None:
                return Beginning(version, secret, first, offset, head)
        finally:
            os.close(fd)
    return None


def find_footer(path: Path) -> Footer | None:
    """The footer of the segment in a file, its header being damaged; None without one. Raises OSError."""
    with opened(path) as file:
        for version, secret, first in _candidates(path):
            fields = {"version": version, "secret": secret, "first_sequence": first}
            header = decode_header(encode_header(**fields), "")
            if found := read_footer(file.fileno(), header):
                return found
    return None


def _candidates(path: Path) -> Iterator[tuple[int, bytes, int]]:
    """(version, secret, first sequence) that the segment may have had."""
    rest, parsed = remains(path), parse_name(path.name)
    named = [parsed[0]] if parsed and parsed[1] != SPARE else []
    directory = path.resolve().parent
    told = list_secrets(Layout(directory.parent)) if directory.name == "segments" else []
    for secret in dict.fromkeys([bytes(rest["secret"]), *told]):
        for first in dict.fromkeys([*named, int(rest["first_sequence"])]):
            yield VERSION, secret, first
    yield 1, bytes(SECRET_BYTES), named[0] if named else int(rest["first_sequence"])
