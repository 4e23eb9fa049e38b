"""Write the golden segments: samples of the present format version, for every later version to read.

python -m tools.golden DIRECTORY

This wrote tests/golden/v1 to v4, each once, in the release that had this version. Never write them
again: a difference there means that files on the disks of users can no longer be read.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spool.format.frame import BURST, POSITION, Tail, finish, tail_at_start
from spool.format.packed import pack
from spool.format.scan import digest_address
from spool.format.segment import Identity, header_behind, seal
from spool.format.segment_format import (
    FOOTER,
    HEAD_BYTES,
    HEADER,
    HEADER_BYTES,
    PIDS,
    SALVAGED,
    SENDERS,
    UIDS,
    decode_header,
)
from spool.format.wire import Reason, encode, encode_message
from spool.index.log_end import empty_tail, read_footer
from spool.log.writer import encode_body
from spool.native.digest import digest
from spool.native.memory import address_of
from spool.storage.disk import Mapping as Mapped
from spool.storage.disk import open_to_write

SPOOL, BOOT, SECRET = bytes(range(16)), bytes(range(16, 32)), bytes(range(32, 48))
RECEIVED_NS = 1_700_000_000_000_000_000
TIMESTAMP = 1_700_000_000_123
SEGMENT_BYTES = 12288

Burst = tuple[Sequence[bytes], Mapping[int, tuple[int, bytes]], tuple[int, int], int]
"""Datagrams, refused {reason: (count, sample)}, (uid, pid), flags."""

BURSTS: list[Burst] = [
    ([encode(b"clicks", b"hello", timestamp=TIMESTAMP)], {}, (1000, 4242), 0),
    (
        [
            encode(b"clicks", b"", key=b"k", timestamp=-1),
            encode("k\u00e4se".encode(), b"\x00\xff", key=bytes(range(256)), partition_key=-7),
            encode(b"t", b"large:" + b"x" * 4000, timestamp=TIMESTAMP + 1, partition_key=2**31 - 1),
            encode_message(b"t", None, key=b"", timestamp=TIMESTAMP, headers=[("a", b"1"), ("a", None)]),
            encode_message(b"t", b"", partition=2**31 - 1, headers=[("", b""), ("\u00e9", b"\xff" * 300)]),
            encode_message(b"clicks", b"v", key=None, partition_key=-7),
        ],
        {Reason.SHORT: (2, b""), Reason.VALUE: (1, b"\x00\x00\x00\x1dprefix")},
        (0, 1),
        SALVAGED,
    ),
    ([], {Reason.API_KEY: (512, b"\x00" * 300)}, (0, 0), 0),
    ([encode(b"t", b"%d" % i, timestamp=TIMESTAMP + i) for i in range(20)], {}, (0xFFFFFFFF, 0xFFFFFFFF), 0),
]


def by(uid: int, sample: bytes) -> bytes:
    """A sample, prefixed with its sender."""
    return uid.to_bytes(4, "little") + sample


SENDERS_BURSTS: list[Burst] = [
    (
        [encode(b"clicks", b"hello", timestamp=TIMESTAMP)] * 2,
        {Reason.SHORT: (3, by(1001, b"abc")), Reason.NOT_PERMITTED: (1, by(0, b"\0\0\0\x1dprefix"))},
        (1000, 4242),
        SENDERS,
    ),
    (
        [],
        {Reason.SHORT: (2, by(0xFFFFFFFF, b"")), Reason.UNCLEAN: (1, by(1001, b"x" * 252))},
        (0, 0),
        SENDERS,
    ),
]


def write_segment(path: Path, before: Tail, number: int, bursts: Sequence[Burst]) -> Tail:
    """An unsealed segment with these bursts; the tail after them."""
    header = bytearray(header_behind(before, Identity(SPOOL, BOOT, SECRET), number))
    record = np.frombuffer(header, HEADER).copy()
    record["created_ns"] = RECEIVED_NS
    record["check"] = digest(record.tobytes()[:-8])
    path.write_bytes(record.tobytes() + bytes(SEGMENT_BYTES - HEADER_BYTES))
    tail = tail_at_start(decode_header(record.tobytes(), path))
    mapped = Mapped(open_to_write(path))
    for i, (datagrams, refused, sender, flags) in enumerate(bursts):
        body, rows = encode_body(datagrams, refused, sender)
        at = int(tail[POSITION]) + HEAD_BYTES
        mapped.bytes[at : at + len(body)] = np.frombuffer(body, np.uint8)
        discarded, burst = sum(n for n, _ in refused.values()), int(tail[BURST]) + 1 + i
        received, kind = RECEIVED_NS + i, flags | UIDS | PIDS
        base, address = address_of(mapped.bytes), digest_address()
        finish(base, tail, len(datagrams), discarded, len(body), rows, kind, burst, received, address)
    mapped.close()
    return tail


def main() -> None:
    """Write sealed.seg, unsealed.seg, torn.seg, expected.json; packed.seg; senders.seg, senders.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args().directory
    directory.mkdir(parents=True)
    write_segment(directory / "senders.seg", empty_tail(), 1, SENDERS_BURSTS)
    described = [describe(burst) for burst in SENDERS_BURSTS]
    (directory / "senders.json").write_text(json.dumps(described, indent=1) + "\n")
    write_segment(directory / "sealed.seg", empty_tail(), 1, BURSTS)
    tail = seal(directory / "sealed.seg")
    behind = write_segment(directory / "unsealed.seg", tail, 2, BURSTS[:2])
    torn = directory / "torn.seg"
    end = write_segment(torn, tail, 2, BURSTS)
    with torn.open("r+b") as file:
        file.seek(int(end[POSITION]) - 100)
        file.write(bytes(100))
    expected: dict[str, Any] = {"bursts": [describe(burst) for burst in BURSTS]}
    for name, position in (("sealed", tail), ("unsealed", behind)):
        expected[name] = {"header": header_of(directory / f"{name}.seg"), "end": int(position[POSITION])}
    fd = os.open(directory / "sealed.seg", os.O_RDONLY)
    footer = read_footer(fd)
    packed = os.open(directory / "packed.seg", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    pack(fd, packed)
    os.close(packed)
    os.close(fd)
    assert footer is not None
    expected["sealed"]["footer"] = {
        **{n: plain(footer.fields[n]) for n in FOOTER.names or () if n != "magic"},
        "sum_rows": footer.sums.tolist(),
        "mark_rows": footer.marks.tolist(),
        "topic_rows": [[name.hex(), *rest] for name, *rest in footer.topics],
    }
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def header_of(path: Path) -> dict[str, Any]:
    """The header, field by field."""
    record = decode_header(path.read_bytes(), path)
    return {name: plain(record[name]) for name in HEADER.names or () if name not in ("zero", "check")}


def describe(burst: Burst) -> dict[str, Any]:
    """A burst as JSON."""
    datagrams, refused, sender, flags = burst
    rows = [[int(reason), count, sample[:256].hex()] for reason, (count, sample) in refused.items()]
    return {"datagrams": [d.hex() for d in datagrams], "refused": rows, "sender": sender, "flags": flags}


def plain(value: Any) -> Any:
    """A field as JSON: bytes in hex."""
    found = value.tolist()
    return found.hex() if isinstance(found, bytes) else found


if __name__ == "__main__":
    main()
