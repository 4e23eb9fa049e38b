"""Bursts from a real socket: what is right is stored, what is wrong is counted, each as it came."""

from __future__ import annotations

import array
import ast
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spool.format.wire import Reason, encode, encode_batch
from tests.ingest.intake import Intake
from tests.spool import plain
from tests.spool.format.test_wire import MALFORMED
from tests.spool.strategies import anything

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/golden_datagrams.json").read_text())
FIXED = len(encode(b"t", b""))


def sized(length: int, mark: int = 0) -> bytes:
    """A well-formed datagram of exactly this many bytes."""
    return encode(b"t", (b"%d:" % mark).ljust(length - FIXED, b"v")[: length - FIXED])


@settings(max_examples=40)
@given(st.lists(anything, max_size=40))
def test_every_datagram_is_stored_or_counted(datagrams: list[bytes]) -> None:
    """Of any datagrams the right ones are stored in order, the others counted under the parser's reasons."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        intake = Intake(Path(name))
        intake.take(datagrams)
        verdicts = [(data, plain.parse(data)) for data in datagrams]
        right = [plain.split(data) for data, verdict in verdicts if not isinstance(verdict, str)]
        assert intake.stored() == list(chain.from_iterable(right))
        wrong = [(data, reason) for data, reason in verdicts if isinstance(reason, str)]
        counts = [Counter({reason: plain.count_messages(data)}) for data, reason in wrong]
        assert intake.refused() == sum(counts, Counter())
        frames = intake.frames()
        assert {u for f in frames for u in f.uids} <= {os.getuid()}
        assert {p for f in frames for p in f.pids} <= {os.getpid()}
        assert all(f.discarded == sum(n for _, n, _ in f.rows) for f in frames)
        intake.close()


def test_golden_datagrams_are_stored_as_they_came(intake: Intake) -> None:
    """All datagrams of a Dory client library, byte for byte."""
    golden = [bytes.fromhex(vector["datagram_hex"]) for vector in GOLDEN]
    intake.take(golden)
    assert intake.stored() == golden
    assert intake.refused() == {}


def test_every_malformed_case_is_counted_under_its_own_reason(intake: Intake) -> None:
    """Each case of the wire's specification, alone between two right ones, and its first bytes kept."""
    for data, reason in MALFORMED.values():
        before = intake.refused().get(reason, 0)
        intake.take([sized(40, 1), data, sized(40, 2)])
        assert intake.refused()[reason] == before + plain.count_messages(data)
        assert intake.frames()[-1].rows[0][2] == plain.sample_of(data)
    assert sum(intake.refused().values()) == sum(plain.count_messages(data) for data, _ in MALFORMED.values())
    assert len(intake.stored()) == 2 * len(MALFORMED)


@pytest.mark.parametrize("size", [40, 1000, 3000, 20_000])
def test_a_batch_is_stored_as_its_messages(intake: Intake, size: int) -> None:
    """Also of batches that go on in their overflow: each message, in order, between others."""
    parts = [sized(size, number) for number in range(min(256, 65_000 // size))]
    intake.take([sized(30, 1), encode_batch(parts), encode_batch(parts[:1]), sized(30, 2)])
    assert intake.stored() == [sized(30, 1), *parts, parts[0], sized(30, 2)]
    assert [frame.discarded for frame in intake.frames()] == [0]
    assert {len(frame.uids) for frame in intake.frames()} == {len(parts) + 3}


@pytest.mark.parametrize("place", [0, 6, 30, 199])
def test_the_sample_of_a_batch_begins_with_what_is_wrong(intake: Intake, place: int) -> None:
    """Wherever in the batch, in its overflow, and across where that begins; all its messages are counted."""
    parts = [sized(300, number) for number in range(200)]
    parts[place] = parts[place][:8] + b"\0\1" + parts[place][10:]
    intake.take([sized(30, 1), encode_batch(parts)])
    assert intake.stored() == [sized(30, 1)]
    (row,) = intake.frames()[-1].rows
    assert row == (Reason.FLAGS, 200, parts[place][:256])
    assert intake.frames()[-1].discarded == 200


@pytest.mark.parametrize("length", [29, 2047, 2048, 2049, 4096, 65535, 65536])
def test_datagrams_of_every_size_up_to_the_limit_are_stored(intake: Intake, length: int) -> None:
    """A datagram that goes on in its overflow range comes out in one piece, beside others of its kind."""
    sent = [sized(length, i) for i in range(5)]
    intake.take([*sent, sized(30, 9)])
    assert intake.stored() == [*sent, sized(30, 9)]


def test_datagrams_over_the_limit_are_truncated_and_never_stored(intake: Intake) -> None:
    """65,537 bytes and more: counted as truncated, with a sample, between right ones that are stored."""
    first, last = sized(65536, 1), sized(65536, 3)
    intake.take([first, sized(65537, 2), b"\xff" * 100000, last])
    assert intake.stored() == [first, last]
    assert intake.refused() == {"truncated": 2}
    samples = [sample for f in intake.frames() for _, _, sample in f.rows]
    assert samples[0] == sized(65537, 2)[:256]


def test_an_empty_datagram_is_short(intake: Intake) -> None:
    """A datagram of no bytes is a datagram: counted, and no sign of an end."""
    intake.take([b"", sized(40), b""])
    assert intake.refused() == {"short": 2}
    assert intake.stored() == [sized(40)]


def test_a_sample_is_of_the_first_of_its_kind(intake: Intake) -> None:
    """A burst keeps one sample a reason and sender, at most 256 bytes, of the first datagram refused."""
    wrong = [b"\x00\x00\x00\x01" + b"first" * 200, b"\x00\x00\x00\x01" + b"second"]
    intake.queue([*wrong, b"abc"])
    intake.take([])
    (frame,) = intake.frames()
    assert sorted(frame.rows) == [(1, 1, b"abc"), (2, 2, wrong[0][:256])]


def test_passed_descriptors_do_not_stay_open(intake: Intake) -> None:
    """A sender that passes descriptors leaks none into the worker; its message is stored."""
    with open(__file__, "rb") as file:
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()] * 3))]
        for i in range(5):
            intake.sender.sendmsg([sized(50, i)], passed)
    intake.take([])
    assert intake.stored() == [sized(50, i) for i in range(5)]
    # By realpath one that is closed meanwhile, by another thread of this process, is itself.
    assert os.path.realpath(__file__) not in [
        os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
    ]
    assert {u for f in intake.frames() for u in f.uids} == {os.getuid()}


def test_bursts_go_on_in_the_next_segment(memory: Path) -> None:
    """Frames around the end of small segments: nothing is lost at a roll, and every frame is one burst."""
    intake = Intake(memory, segment_bytes=16384)
    sent = [sized(100 + 37 * i % 900, i) for i in range(400)]
    intake.take(sent)
    assert intake.stored() == sent
    assert len(intake.spool.segments()) > 5
    bursts = [frame.burst for frame in intake.frames()]
    assert bursts == list(range(1, len(bursts) + 1))
    intake.close()


LIFE = """
import sys
from pathlib import Path
from cli.daemon import compiling
from spool.native.kernel import Kernel

def compiled():
    modules = [m for name, m in sys.modules.items() if name.split(".")[0] in ("spool", "ingest")]
    found = [v for m in modules for v in vars(m).values() if isinstance(v, Kernel)]
    return {(k.__module__, k.__name__): len(k._compiled.signatures) if k._compiled else 0 for k in found}

compiling.load_loops()
before = compiled()
from ingest.worker import burst
from tests.ingest.intake import Intake
from tests.ingest.worker.test_burst import sized
intake = Intake(Path(sys.argv[1]))
intake.queue([sized(100)])
intake.receive()
intake.restart()
intake.take([sized(5000), b""] * 10)
intake.queue([sized(100), b""])
intake.worker._discard(intake.list_received(), 0)
intake.restart()
print({name: n for name, n in compiled().items() if n != before.get(name, 0)})
intake.close()
"""


def test_no_worker_compiles_anything(memory: Path) -> None:
    """After load_loops, a worker's whole life needs no kernel more: its successor receives at once."""
    command = [sys.executable, "-c", LIFE, str(memory)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True, timeout=300
    )
    needed = ast.literal_eval(done.stdout)
    # Sealing is the keeper's, and the test calls a part of receive by itself.
    assert {name for name in needed if name[0] != "spool.format.batch"} <= {
        ("ingest.buffers.staging", "reset")
    }
