"""tools/adversary: its judge finds what is planted, and its short form runs attacks against a live daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from ingest.buffers.messages import MESSAGE
from ingest.buffers.staging import Staging
from spool.format.frame import HEAD_BYTES, KEY, MARK, TAIL_FIELDS, verify
from spool.format.packed import open_plain
from spool.format.scan import digest_address
from spool.format.segment_format import HEADER_BYTES, OLD_KEYS, keys_from
from spool.format.wire import check
from spool.native.memory import address_of
from tools.adversaries import planting
from tools.adversaries.catalogue import ATTACKS
from tools.adversaries.consumer import SEEN
from tools.adversaries.judgement import Observed, Phase, Verdict, decide
from tools.adversaries.options import LEAST_S, OVERHEAD_S, Options
from tools.adversaries.partitioner import UNBEARABLE, choose
from tools.adversaries.samples import Peak
from tools.benches import adversarial
from tools.benches.bench import Bench
from tools.payload import NO_KEY

ADVERSARY = Path(__file__).resolve().parents[2] / "tools/adversary"
HONEST, FORBIDDEN = 0, 3
COUNT = 50
KEYS = keys_from(bytes(16), 0)
SHORT = (
    "planted-frame",
    "malformed",
    "discard-rows",
    "huge-messages",
    "kill-all",
    "kill-all-held",
    "group-reader",
    "raising-partitioner",
    "unknown-names",
    "made-topics",
    "quota-names",
    "batched-topics",
    "batched-names",
    "absent-partitions",
    "many-headers",
    "illegal-names",
    "stream-headers",
    "connection-churn",
    "ack-flood",
    "status-crowd",
    "planted-page",
    "planted-link",
    "planted-pipe",
    "planted-staging",
    "squatted-directory",
    "planted-fifo",
    "lock-files",
)
"""Some 20 s each. Of the others, what bounds a packed bomb is tried in tests/spool/format/test_packed.py,
each death of a replay in tests/cli/replay/test_state.py, and a kill without a holder, which may lose
something, in tests/e2e/test_hold_socket.py; a clock that is set shows in latencies and syncs, which are not
judged here."""
MS = 1_000_000


def seen(sender: int, count: int = COUNT, *, late_ms: float = 10) -> np.ndarray:
    """An honest sender's messages as a consumer sees them, each once."""
    rows = np.zeros(count, SEEN)
    rows["sender"], rows["key"], rows["topic"] = sender, NO_KEY, HONEST
    rows["id"] = rows["offset"] = np.arange(count)
    rows["sequence"] = 1000 * sender + np.arange(count)
    rows["sent_ns"] = MS * np.arange(count)
    rows["at_ns"] = rows["sent_ns"] + int(late_ms * MS)
    return rows


def observed(rows: np.ndarray) -> Observed:
    """A run in which all is well but the rows."""
    return Observed(
        Phase({0: COUNT}, {0: COUNT}), Phase({10: COUNT}, {10: COUNT}), rows, forbidden=(FORBIDDEN,)
    )


def judged(*rows: np.ndarray) -> Verdict:
    """The verdict over these rows."""
    return decide(observed(np.concatenate(rows)))


def test_what_is_right_holds() -> None:
    """Every message once, in time: nothing is broken."""
    assert not judged(seen(0), seen(10)).broken


def test_a_lost_message_is_found() -> None:
    """One message of the attack's phase, and one of the control's."""
    for one in (0, 10):
        whole = np.concatenate([seen(0), seen(10)])
        verdict = judged(whole[~((whole["sender"] == one) & (whole["id"] == 7))])
        assert (verdict.lost, len(verdict.broken)) == (1, 1)


def test_what_nobody_held_may_be_lost() -> None:
    """As many as the socket's queue has room for at each kill, and not one more."""
    run = observed(np.concatenate([seen(0), seen(10)[3:]]))
    run.may_lose = 3
    assert not decide(run).broken
    run.may_lose = 2
    assert decide(run).broken == ["3 honest messages did not arrive"]


def test_a_doubled_message_is_found() -> None:
    """Twice under one number, though no deliverer was killed; under two numbers, always."""
    again = seen(10)[7:8]
    again["offset"] = 1000
    assert judged(seen(0), seen(10), again).doubled == 1
    killed = observed(np.concatenate([seen(0), seen(10), again]))
    killed.deliverers_killed = 1
    assert not decide(killed).broken
    again["sequence"] = 5
    killed.seen = np.concatenate([seen(0), seen(10), again])
    assert decide(killed).doubled == 1


def test_what_comes_twice_behind_the_last_kill_is_allowed() -> None:
    """The program itself kills the deliverer at its end: at least once lets it send again."""
    again = seen(10)[7:8]
    again["at_ns"] += 10**12
    run = observed(np.concatenate([seen(0), seen(10), again]))
    run.ended_ns = int(again["at_ns"][0]) - 1
    assert not decide(run).broken


def test_a_forged_message_is_found() -> None:
    """In a topic that is closed to all; of a sender that is none; changed on the way."""
    planted, stranger, changed = seen(99, 1), seen(99, 1), seen(10)
    planted["topic"] = FORBIDDEN
    changed["corrupt"][3] = 1
    for forged in ((seen(10), planted), (seen(10), stranger)):
        verdict = judged(seen(0), *forged)
        assert (verdict.forged, verdict.lost, len(verdict.broken)) == (1, 0, 1)
    verdict = judged(seen(0), changed)
    assert (verdict.forged, verdict.lost) == (1, 1)


def test_messages_out_of_order_are_found() -> None:
    """Two messages of one key, of which the later came first."""
    rows = seen(10)
    rows["key"] = 5
    rows["offset"][[3, 4]] = rows["offset"][[4, 3]]
    assert judged(seen(0), rows).out_of_order == 1


def test_each_bound_that_is_broken_is_named() -> None:
    """Latency against the control, what was not taken, memory, descriptors, syncs, the start, the totals."""
    late = judged(seen(0), seen(10, late_ms=500))
    assert ["honest p99 of sender 10 is 500 ms" in text for text in late.broken] == [True]
    run = observed(np.concatenate([seen(0), seen(10)]))
    run.control.peak = Peak({"keeper": 50.0}, {"keeper": 10})
    run.attack.peak = Peak({"keeper": 900.0}, {"keeper": 9000}, 30.0)
    run.start_s, run.adds_up, run.restarts, run.attack.due = 60.0, False, 2, {10: 2 * COUNT}
    broken = " | ".join(decide(run).broken)
    for word in (
        "900 MiB",
        "9000 descriptors",
        "synced for 30.0",
        "took 60.0",
        "received is not",
        "2 workers",
    ):
        assert word in broken
    assert "50 % of what the honest" in broken
    assert len(decide(run, counts_only=True).broken) == 2


def test_a_late_sender_among_many_is_found() -> None:
    """One of two honest senders is late in the attack: what all have together would hide it."""
    rows = np.concatenate([seen(0), seen(1), seen(10, 40 * COUNT), seen(11, late_ms=500)])
    run = Observed(Phase({0: COUNT, 1: COUNT}), Phase({10: 40 * COUNT, 11: COUNT}), rows)
    assert decide(run).latency["attack"][0] == 10
    assert [text.split(",")[0] for text in decide(run).broken] == ["the honest p99 of sender 11 is 500 ms"]


def test_one_pause_of_the_machine_is_no_attack() -> None:
    """Two fifths of a phase may be late; three may not, and no message by more than a second."""
    late = seen(10)
    late["at_ns"][: 2 * COUNT // 5] += 500 * MS
    assert not judged(seen(0), late).broken
    late["at_ns"][2 * COUNT // 5 : 3 * COUNT // 5] += 500 * MS
    assert ["honest p99 of sender 10 is 510" in text for text in judged(seen(0), late).broken] == [True]
    once = seen(10)
    once["at_ns"][7] += 2_000 * MS
    assert ["came 2010 ms late" in text for text in judged(seen(0), once).broken] == [True]


def test_a_planted_frame_is_one_that_a_reader_of_version_1_believes() -> None:
    """The attacker's frames have a right digest: what stops them is not that they are badly made."""
    data = np.frombuffer(planting.frame(5, 7) + bytes(HEAD_BYTES), np.uint8).copy()
    made = planting.frame(5, 7)
    assert made[8:12] == planting.MAGIC
    assert len(made) % 8 == 0
    held = made[HEAD_BYTES + 8 :]
    size = int.from_bytes(held[:4], "big")
    assert check(address_of(np.frombuffer(held, np.uint8)), size) == 0
    tail = np.zeros(TAIL_FIELDS, np.int64)
    tail[MARK] = OLD_KEYS.mark
    assert verify(address_of(data), len(data), tail, digest_address()) == 0


def test_a_group_reader_makes_frames_that_a_reader_believes() -> None:
    """With the keys of a segment of this version: they do no harm, since no reader looks at them."""
    made = planting.frame(5, 7, keys=KEYS)
    data = np.frombuffer(made + bytes(HEAD_BYTES), np.uint8).copy()
    tail = np.zeros(TAIL_FIELDS, np.int64)
    tail[KEY], tail[MARK] = KEYS
    assert verify(address_of(data), len(data), tail, digest_address()) == 0
    tail[KEY] += 1
    assert verify(address_of(data), len(data), tail, digest_address()) != 0


def test_forged_staging_is_what_a_daemon_would_take(tmp_path: Path) -> None:
    """Its burst is the first, and holds messages under root's uid: it is refused only for its owner."""
    data, size = planting.staging(bytes(16))
    path = tmp_path / "forged.staging"
    path.write_bytes(data)
    os.truncate(path, size)
    path.chmod(0o600)
    staging = Staging(path, bytes(16), 8)
    out = np.zeros(8, MESSAGE)
    assert (staging.armed, staging.list_messages(0, out)) == (1, 7)
    assert set(out["uid"][:7].tolist()) == {planting.VICTIM_UID}
    assert all(check(int(row["at"]), int(row["length"])) == 0 for row in out[:7])


def test_long_attacks_take_their_time_from_the_others() -> None:
    """The total stays as it is: a phase of 75 s shortens all that are shorter."""
    options = Options(minutes=10)
    assert options.phase_s([0.0] * 10) == (600 - 10 * OVERHEAD_S) / 20
    least = [0.0] * 9 + [75.0]
    seconds = options.phase_s(least)
    assert sum(seconds + max(seconds, one) for one in least) == pytest.approx(600 - 10 * OVERHEAD_S)
    assert seconds < 75
    # A least phase below that of the others changes nothing.
    assert options.phase_s([5.0] + [0.0] * 9) == options.phase_s([0.0] * 10)
    assert options.phase_s([600.0] * 10) == LEAST_S


def test_a_message_before_the_control_counts() -> None:
    """It may be neither lost nor unknown; its latency is no one's."""
    run = observed(np.concatenate([seen(0), seen(10), seen(20, late_ms=9000)]))
    run.first.sent = {20: COUNT}
    assert not decide(run).broken
    run.seen = run.seen[run.seen["sender"] != 20]
    assert decide(run).lost == COUNT


def test_a_bomb_holds_what_it_says(tmp_path: Path) -> None:
    """Its blocks are good ones: a reader unpacks them, up to its bound."""
    bomb = planting.packed_bomb(bytes(16), 1, 300)
    path = tmp_path / "0.seg"
    path.write_bytes(bomb)
    fd = open_plain(path)
    try:
        assert 255 << 20 < os.fstat(fd).st_size < (256 << 20) + 1024
        assert os.pread(fd, 4, HEADER_BYTES + (200 << 20)) == b"\1\1\1\1"
    finally:
        os.close(fd)


def test_the_partitioner_raises_for_the_attacker_alone() -> None:
    """Others' keys get a partition each."""
    nothing = np.zeros(2, np.int32)
    assert choose([b"", b"a"], nothing, 8).tolist() == [0, 1]
    with pytest.raises(KeyError):
        choose([b"", UNBEARABLE], nothing, 8)


def test_the_bench_ends_what_takes_too_long(tmp_path: Path) -> None:
    """Every act gives a figure; one beyond its limit is shown as such."""
    bench = Bench(tmp_path, repeat=1)
    options = Namespace(
        mib=[1], large=False, limit=20.0, cases=["tiny messages"], acts=list(adversarial.ACTS)
    )
    figures = list(adversarial.measure(bench, options))
    assert {figure.name.partition(",")[0] for figure in figures} == set(adversarial.ACTS)
    assert all(figure.value > 0 for figure in figures)
    options.limit, options.acts = 1e-9, ["verify"]
    assert all("> limit" in figure.remark for figure in adversarial.measure(bench, options))


def test_every_attack_says_what_must_hold() -> None:
    """`--list` has a line for each."""
    done = subprocess.run([sys.executable, ADVERSARY, "--list"], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(ATTACKS)
    assert all(len(line.split()) > 8 for line in lines)


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")
@pytest.mark.parametrize("attack", SHORT)
def test_an_attack_loses_doubles_and_forges_nothing(tmp_path: Path, attack: str) -> None:
    """Against a live daemon, beside honest senders of another user: every count is exact."""
    command = [sys.executable, ADVERSARY, "--only", attack, "--minutes", "0.4", "--counts", "--seed", "3"]
    done = subprocess.run(
        [*command, "--dir", tmp_path / "adversary"], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every attack failed" in done.stdout
