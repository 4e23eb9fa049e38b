"""The worst contents of a segment, beside an ordinary one of the same bytes.

The bench stores each like a daemon, and leaves it as after a power loss. Then a process of its own seals it
(`seal`), opens the spool of another boot (`start`), or reads it: `verify`, `decode`, `find`, and `count`, of
waiting messages by topic. `pack` packs the sealed one. An act that takes longer than --limit seconds is
ended, and shown as "> limit". The limit is 3 times the cost of the ordinary segment, and twice the time for
twice the bytes, with an allowance for fixed costs. For contents with more messages in the same bytes, the
cost of one message is shown, too, without a limit.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import secrets
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from spool.errors import SpoolFull
from spool.format.batch import Topics, decode
from spool.format.frame import POSITION, tail_at_start
from spool.format.packed import pack
from spool.format.scan import Scan, digest_address, read_header
from spool.format.segment import Identity, create_spare, seal
from spool.format.segment_format import (
    BODY_BYTES_AT,
    HEAD_BYTES,
    HEADER_BYTES,
    MARK_AT,
    MAX_TOPICS,
    OLD_KEYS,
    PREVIOUS_AT,
    SECRET_BYTES,
    encode_header,
)
from spool.format.wire import MAX_DATAGRAM_BYTES, Reason, encode
from spool.fsck.check import Check
from spool.layout import Layout
from spool.log.recovery import boot_id, open_spool
from spool.log.writer import Writer
from spool.native.digest import digest
from spool.options import SpoolOptions
from spool.read.backlog import Backlog
from spool.read.patterns import Plain
from spool.shared.state import Field, SharedState
from tools.adversaries import planting
from tools.benches.bench import Bench
from tools.benches.report import Figure

MOST_RATIO, MOST_GROWTH = 3.0, 2.6
SPOOL, ELSEWHERE = bytes(range(16)), bytes(range(16, 32))
ORDINARY = "ordinary"
_MIB, _LARGE = 1 << 20, 64
_BURST, _FEW, _BURST_BYTES = 500, 2, 200_000
_DAMAGED: Mapping[str, int] = {
    "damage": 300,
    "fake heads": 50_000,
    "nested fake heads": 50_000,
    "planted frames": 50_000,
    "magic words": 50_000,
}
"""One byte in this many is wrong: the search for the next frame after it has to pass these contents."""
_OLD = "version 1, "
"""Such a case is the one of the rest of its name, as a release before version 2 of the format stored it."""
_WARM = ("damage", "distinct short topics", "one byte", _OLD + "damage")
"""Kernels are compiled, or loaded, on these before anything is timed."""
_WARM_BYTES = 256 << 10
ABSENT, LONG, REPEATED = b"a text that is nowhere", b"ab" * 50 + b"c", b"aa" * 10
"""Texts that are looked for; LONG is nowhere, either."""
PREPARE_S = 10.0
Burst = tuple[list[bytes], Mapping[int, tuple[int, bytes]]]
Contents = Callable[[int], tuple[bytes, Mapping[int, tuple[int, bytes]]]]


def _topic(name: str, width: int) -> Contents:
    return lambda number: (encode(name.format(number).encode().ljust(width, b"x"), b"v" * 20), {})


def _value(make: Callable[[int], bytes]) -> Contents:
    return lambda number: (encode(b"orders", make(number)), {})


def _nested(number: int) -> bytes:
    """Heads within the bodies that other heads claim, each twice the size of the next."""
    heads = [
        planting.HEAD.pack(1, b"bfrm", 64, 0, 0, 0, 1 << i, 0, number, number, 1, 0) for i in range(7, 20)
    ]
    return b"".join(reversed(heads)) * 60


def _nearly(number: int) -> bytes:
    """The text that is to be found, again and again, with one byte wrong."""
    at = number % len(ABSENT)
    return (ABSENT[:at] + bytes([ABSENT[at] ^ 1]) + ABSENT[at + 1 :]) * 3


CASES: Mapping[str, Contents] = {
    ORDINARY: lambda n: (encode(b"topic-%d" % (n % 20), b"a value, %d " % n * 10, key=b"%d" % n), {}),
    "distinct short topics": lambda n: (encode(b"%x" % n, b""), {}),
    "returning short topics": lambda n: (encode(b"%x" % (n % MAX_TOPICS), b""), {}),
    "distinct long topics": _topic("{:0200d}", 200),
    "fake heads": _value(lambda n: planting.fake_heads(n, n)),
    "nested fake heads": _value(_nested),
    "planted frames": _value(lambda n: planting.frames(n, n)),
    "zeros": _value(lambda _n: bytes(60_000)),
    "magic words": _value(lambda _n: b"bfrmbruceftrbrucefinbrucesegbrucezst" * 1_000),
    "one-byte topics": lambda n: (encode(bytes([n % 255 + 1]), b"v"), {}),
    "tiny messages": lambda _n: (encode(b"t", b""), {}),
    "maximal messages": _value(lambda n: n.to_bytes(8, "big") * ((MAX_DATAGRAM_BYTES - 100) // 8)),
    "incompressible": _value(lambda n: random.Random(n).randbytes(1_000)),  # noqa: S311  (to be repeated)
    "discard rows only": lambda _n: (b"", dict.fromkeys(range(1, 10), (1, b"x" * 250))),
    "nearly what is sought": _value(lambda n: b"".join(map(_nearly, range(n, n + len(ABSENT))))),
    "nearly a long text": _value(lambda n: b"".join(b"ab" * (48 + (n + at) % 5) + b"d" for at in range(30))),
    "one byte": _value(lambda _n: b"a" * 1_000),
    "damage": lambda n: (encode(b"orders", b"v%d" % n), {}),
}
"""The n-th message; the refused datagrams of its burst."""
_OLD_CASES = tuple(_OLD + case for case in (ORDINARY, "fake heads", "planted frames", "damage"))
_ALL = (*CASES, *_OLD_CASES)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options for sizes, contents, acts and the time limit."""
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--large", action="store_true", help=f"segments of {_LARGE} MiB, too")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds; default 20")
    parser.add_argument("--cases", nargs="+", choices=_ALL, default=list(_ALL), metavar="CASE")
    parser.add_argument("--acts", nargs="+", choices=tuple(ACTS), default=list(ACTS), metavar="ACT")


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Every act on every content, of every size."""
    sizes = sorted(set(options.mib) | ({_LARGE} if options.large else set()))
    cases = [ORDINARY, *(case for case in options.cases if case != ORDINARY)]
    took: dict[tuple[str, str, int], list[float]] = {}
    held: dict[tuple[str, int], int] = {}
    work = bench.directory / "adversarial"
    shutil.rmtree(work, ignore_errors=True)
    warm = [make_segment(work / f"warm-{at}", case, _WARM_BYTES)[0] for at, case in enumerate(_WARM)]
    for case in cases:
        for mib in sizes:
            shutil.rmtree(work / "made", ignore_errors=True)
            path, held[case, mib] = make_segment(work / "made", case, mib * _MIB)
            for act in options.acts:
                values = [timed(act, path, warm, options.limit) for _ in range(bench.repeat)]
                took[act, case, mib] = values
    shutil.rmtree(work, ignore_errors=True)
    for act in options.acts:
        for case in cases:
            yield from _figures(took, act, case, sizes, options.limit)
            yield from _by_message(took, held, act, case, sizes[-1], options.limit)


def _figures(
    took: Mapping[tuple[str, str, int], Sequence[float]],
    act: str,
    case: str,
    sizes: Sequence[int],
    limit: float,
) -> Iterator[Figure]:
    for mib in sizes:
        values, usual = took[act, case, mib], took[act, ORDINARY, mib]
        name = f"{act}, {case}, {mib} MiB"
        shown = [1000 * value / mib for value in values]
        remark = _remark(values, limit)
        if case == ORDINARY:
            yield Figure(name, shown, "ms/MiB", remark=remark)
        else:
            baseline = [1000 * value / mib for value in usual]
            yield Figure(name, shown, "ms/MiB", at_most=MOST_RATIO, baseline=baseline, remark=remark)
    for small, large in pairwise(sizes):
        if large == 2 * small:
            name = f"{act}, {case}, {large} MiB against {small}"
            few, many = took[act, case, small], took[act, case, large]
            yield Figure(name, many, "s", at_most=MOST_GROWTH, baseline=few)


def _by_message(
    took: Mapping[tuple[str, str, int], Sequence[float]],
    held: Mapping[tuple[str, int], int],
    act: str,
    case: str,
    mib: int,
    limit: float,
) -> Iterator[Figure]:
    if (messages := held[case, mib]) > (usual := held[ORDINARY, mib]):
        values = took[act, case, mib]
        shown = [1e9 * value / messages for value in values]
        baseline = [1e9 * value / usual for value in took[act, ORDINARY, mib]]
        yield Figure(
            f"{act}, {case}, {mib} MiB, by message",
            shown,
            "ns",
            baseline=baseline,
            remark=_remark(values, limit),
        )


def _remark(values: Sequence[float], limit: float) -> str:
    return f"> limit ({limit:g} s)" if max(values) >= limit else ""


def make_segment(directory: Path, case: str, size: int) -> tuple[Path, int]:
    """A spool of one segment of this many bytes, of another boot: (its file, without its name, messages)."""
    old, case = case.startswith(_OLD), case.removeprefix(_OLD)
    layout = Layout(directory / "spool")
    layout.segments.mkdir(parents=True)
    identity = Identity(SPOOL, ELSEWHERE, secrets.token_bytes(SECRET_BYTES))
    create_spare(layout, identity, 1, size)
    shared = SharedState(directory / "page")
    shared.words[Field.SPARE] = 1
    writer, number = Writer(layout, identity, shared), 0
    with contextlib.suppress(SpoolFull):
        while True:
            held, refused = _burst(case, number)
            writer.append(held, refused=dict(refused), sender=(1000, 1))
            number += max(1, len(held))
    end = int(writer.tail[POSITION])
    writer.close()
    path = layout.segment(1, ".spare")
    if old:
        _make_old(path, end)
    if case in _DAMAGED:
        with path.open("r+b") as file:
            for at in range(2 * HEADER_BYTES, end, _DAMAGED[case]):
                file.seek(at)
                file.write(b"\xa5")
    return path, number


def _make_old(path: Path, end: int) -> None:
    """Make a segment, whose frames end at this offset, one of version 1: a public mark, and no secret."""
    data, header = bytearray(path.read_bytes()), read_header(path)
    fields = {name: header[name] for name in header.dtype.names or () if name not in ("check", "secret")}
    data[:HEADER_BYTES] = encode_header(**{**fields, "version": 1})
    previous, at = int(header["previous"]), HEADER_BYTES
    while at < end:
        body = int.from_bytes(data[at + BODY_BYTES_AT : at + BODY_BYTES_AT + 4], "little")
        data[at + MARK_AT : at + MARK_AT + 4] = OLD_KEYS.mark.to_bytes(4, "little")
        data[at + PREVIOUS_AT : at + PREVIOUS_AT + 8] = previous.to_bytes(8, "little")
        previous = digest(bytes(data[at + MARK_AT : at + HEAD_BYTES + body]), previous)
        data[at : at + 8] = previous.to_bytes(8, "little")
        at += HEAD_BYTES + (body + 7 & ~7)
    path.write_bytes(data)


def _burst(case: str, number: int) -> Burst:
    """One burst from this number on, as many as a queue gives; a small one if damage must hit many."""
    most, contents = _FEW if case == "damage" else _BURST, CASES[case]
    held: list[bytes] = []
    refused: Mapping[int, tuple[int, bytes]] = {}
    while len(held) < most and sum(map(len, held)) < _BURST_BYTES:
        data, refused = contents(number + len(held))
        if refused:
            return [], {int(Reason(reason)): row for reason, row in refused.items()}
        held.append(data)
    return held, refused


def copied(made: Path) -> Path:
    """The segment in a copy of its spool, which may be changed."""
    copy = made.parents[2].with_suffix(".copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(made.parents[2], copy)
    return copy / "spool/segments" / made.name


def timed(act: str, made: Path, warm: Sequence[Path], limit_s: float) -> float:
    """Seconds that an act takes, in a process of its own; the limit, if it takes longer.

    The process first compiles and loads its kernels on the segments `warm`.
    """
    (prepare, run), path, first = ACTS[act], copied(made), [copied(one) for one in warm]
    own, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            # Every start here logs that the host went down.
            logging.disable()
            for one in first:
                run(prepare(one))
            target = prepare(path)
            begun = time.monotonic()
            run(target)
            os.write(theirs, str(time.monotonic() - begun).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(theirs)
    try:
        # Preparing takes time, too: a segment must be sealed before it is packed.
        ready, _, _ = select.select([own], [], [], limit_s + PREPARE_S)
        said = os.read(own, 100) if ready else b""
    finally:
        os.close(own)
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    if ready and not said:
        raise RuntimeError(f"{act} of {path} ended with {os.waitstatus_to_exitcode(status)}")
    return min(limit_s, float(said or limit_s))


def _sealed(path: Path) -> Path:
    named = path.with_name(f"{1:020d}.seg")
    seal(path)
    path.rename(named)
    return named


def _start(path: Path) -> None:
    layout = Layout(path.parents[1])
    (layout.directory / "identity").unlink(missing_ok=True)
    open_spool(SpoolOptions(directory=layout.directory)).lock.release()


def _verify(path: Path) -> None:
    for _ in Check().files([path]):
        continue


def _decode(path: Path, wanted: Plain | None = None) -> None:
    with path.open("rb", buffering=0) as file:
        topics, scan = Topics.of_reader(), Scan(file.fileno(), tail_at_start(read_header(path)))
        for chunk in scan.all():
            if wanted is None or wanted.may_lie_in(chunk.data):
                batch = decode(chunk.data, chunk.offset, chunk.frames, topics, digest_address())
                if wanted is not None:
                    wanted.rows(batch)


def _find(wanted: bytes) -> Callable[[Path], None]:
    """Find a text."""
    return lambda path: _decode(path, Plain(wanted))


def _count(path: Path) -> None:
    backlog = Backlog(Layout(path.parents[1]))
    backlog.look()
    backlog.close()


def _pack(path: Path) -> None:
    with path.open("rb") as source, path.with_suffix(".packed").open("w+b") as target:
        pack(source.fileno(), target.fileno())


def _same(path: Path) -> Path:
    return path


ACTS: Mapping[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "seal": (_same, seal),
    "start": (_same, _start),
    "verify": (_same, _verify),
    "decode": (_same, _decode),
    "find": (_same, _find(ABSENT)),
    "find long": (_same, _find(LONG)),
    "find repeated": (_same, _find(REPEATED)),
    "count": (_same, _count),
    "pack": (_sealed, _pack),
}
"""By act, the preparation, and the timed function."""

assert boot_id() != ELSEWHERE
