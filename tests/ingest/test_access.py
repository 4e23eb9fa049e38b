"""The users' rights to topics: the rules, asked of messages as they come, and counted by sender."""

from __future__ import annotations

import contextlib
import fnmatch
import grp
import os
import pwd
import socket
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.access import NO_ID, TCP_GID, Rules, look_up
from ingest.errors import BadAccessRule, NoAccounts
from ingest.worker import burst
from ingest.worker.worker import IngestWorker
from spool.format.wire import Reason, encode
from spool.shared.ledger import read_ledger
from tests.ingest.intake import Intake, connect
from tests.ingest.processes import await_end, fork

SOMEBODY = 4242
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can send as others")


def enforce(worker: IngestWorker, rules: Rules) -> None:
    """Have these rules asked from here on."""
    worker._rules = rules
    worker.job[burst.RULES] = rules.address


def send_as(path: Path, uid: int, gid: int, datagrams: list[bytes], groups: list[int] | None = None) -> None:
    """Send from a process of this user and group, that is in these groups, too."""

    def run() -> None:
        os.setgroups(groups or [])
        os.setgid(gid)
        os.setuid(uid)
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sender.connect(str(path))
        for data in datagrams:
            sender.send(data)

    assert await_end(fork(run)) == 0


@pytest.fixture
def open_intake(intake: Intake) -> Intake:
    """An intake whose socket others reach, too."""
    intake.spool.directory.chmod(0o755)
    return intake


def refused_by_uid(intake: Intake, reason: Reason) -> dict[int | None, int]:
    """By sender, as the discard rows name it."""
    found: dict[int | None, int] = {}
    for frame in intake.frames():
        for (number, count, _), uid in zip(frame.rows, frame.row_uids, strict=True):
            if number == reason:
                found[uid] = found.get(uid, 0) + count
    return found


@given(st.text("ab*?.", max_size=8), st.text("ab.", min_size=1, max_size=10))
def test_patterns_fit_as_in_a_shell(pattern: str, topic: str) -> None:
    """Stars and question marks match what they match in Python's fnmatch."""
    rules = Rules({pattern or "x": []}, own_uid=1)
    fits = fnmatch.fnmatchcase(topic, pattern or "x")
    assert rules.permits(topic.encode(), SOMEBODY, SOMEBODY) is not fits


def test_the_first_pattern_that_fits_decides() -> None:
    """Also when a later one would let the sender in; a topic that no pattern fits is open to all."""
    rules = Rules({"pay.*": ["uid:7"], "*.eu": ["everybody"], "pay.us": ["uid:8"]}, own_uid=1)
    assert rules.permits(b"pay.eu", 7, 0)
    assert not rules.permits(b"pay.eu", 8, 0)
    assert not rules.permits(b"pay.us", 8, 0)
    assert rules.permits(b"logs.eu", 8, 0)
    assert rules.permits(b"logs", 8, 0)


def test_no_rules_no_questions() -> None:
    """Without rules the kernels get an address of 0, and every sender may write."""
    assert Rules({}).address == 0
    assert Rules({}).permits(b"t", SOMEBODY, SOMEBODY)


@pytest.mark.parametrize("ids", [[], [5], list(range(0, 2000, 3))])
def test_each_id_is_found(ids: list[int]) -> None:
    """In a list of any length, and no other id."""
    by_uid = Rules({"t": [f"uid:{n}" for n in ids]}, own_uid=NO_ID - 1)
    by_gid = Rules({"t": [f"gid:{n}" for n in ids]}, own_uid=NO_ID - 1)
    named = set(ids)
    for n in [*range(60), 1997, 1998, 1999, 2000]:
        assert by_uid.permits(b"t", n, NO_ID) == (n in named)
        if n not in {entry.gr_gid for entry in grp.getgrall()}:
            assert by_gid.permits(b"t", SOMEBODY, n) == (n in named)


def test_who_is_not_known_is_nobody() -> None:
    """A sender that the kernel does not name, and one by TCP, are let in only where it says so."""
    rules = Rules({"a": ["uid:1", "gid:1"], "b": ["tcp"], "c": ["everybody"]}, own_uid=1000)
    assert [rules.permits(t, NO_ID, NO_ID) for t in (b"a", b"b", b"c")] == [False, False, True]
    assert [rules.permits(t, NO_ID, TCP_GID) for t in (b"a", b"b", b"c")] == [False, True, True]


def test_a_group_has_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group means the processes in it and the users that the host lists; not those users' own groups."""
    user = pwd.getpwuid(0)
    staff = grp.struct_group(("staff", "x", 50, [user.pw_name, "gone"]))
    monkeypatch.setattr(grp, "getgrnam", {"staff": staff}.__getitem__)
    rules = Rules({"t": ["group:staff"]}, own_uid=SOMEBODY)
    assert rules.permits(b"t", 77, 50)
    assert rules.permits(b"t", 0, 99)
    assert not rules.permits(b"t", 77, 99)


def test_names_are_found_beside_many_connections() -> None:
    """A supervisor holds thousands: a rule that locks their user out is to be read all the same."""
    with contextlib.ExitStack() as stack:
        for _ in range(1100):
            stack.callback(os.close, os.open("/dev/null", os.O_RDONLY))
        assert Rules({"t": ["user:root"]}, own_uid=SOMEBODY).permits(b"t", 0, 99)


@pytest.mark.parametrize("name", ["user:missing-name", "group:missing-name"])
def test_names_that_the_host_does_not_know(name: str) -> None:
    """One sentence names the rule and the user."""
    with pytest.raises(BadAccessRule, match=r'\[access\] "pay\.\*": there is no (user|group) \'missing-name'):
        Rules({"pay.*": [name]})


def test_a_host_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user directory that hangs: after a limited time an error says so, and no child is left."""
    before = psutil.Process().children()
    monkeypatch.setattr(pwd, "getpwnam", lambda _name: time.sleep(3600))
    with pytest.raises(NoAccounts, match=r"nsswitch\.conf"):
        look_up({"user:alice"}, within_s=0.1)
    assert psutil.Process().children() == before


def test_a_host_whose_answer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of the host's that ends the question by an error ends nothing else."""
    monkeypatch.setattr(pwd, "getpwnam", lambda _name: 1 / 0)
    with pytest.raises(NoAccounts):
        look_up({"user:alice"})


@root_only
@pytest.mark.parametrize("size", [10, 5000], ids=["small", "large"])
def test_refused_by_uid_and_by_gid(open_intake: Intake, size: int) -> None:
    """Messages that their sender may not write are not stored, and counted, with a sample; the rest stays."""
    enforce(open_intake.worker, Rules({"pay.*": ["uid:4001", "gid:5001"]}, own_uid=99))
    path, pay, logs = (
        open_intake.spool.directory / "socket",
        encode(b"pay.eu", b"p" * size),
        encode(b"logs", b"l" * size),
    )
    for uid, gid in ((4001, 4001), (4002, 4002), (4003, 5001), (4002, 4002)):
        send_as(path, uid, gid, [pay, logs])
    open_intake.take([])
    assert open_intake.stored() == [pay, logs, logs, pay, logs, logs]
    assert refused_by_uid(open_intake, Reason.NOT_PERMITTED) == {4002: 2}
    (row,) = [row for frame in open_intake.frames() for row in frame.rows]
    assert row[2] == pay[:256]


@root_only
def test_malformed_ones_are_counted_by_sender(open_intake: Intake) -> None:
    """Each sender has a row of its own for a reason, whether or not there are rules."""
    path = open_intake.spool.directory / "socket"
    send_as(path, 4001, 4001, [b"x", b"y", encode(b"t", b"")])
    send_as(path, 4002, 4002, [b"z"])
    open_intake.take([])
    assert refused_by_uid(open_intake, Reason.SHORT) == {4001: 2, 4002: 1}


@root_only
def test_a_group_of_the_process_alone_is_not_seen(open_intake: Intake) -> None:
    """The kernel tells no supplementary groups: a process in one that the host does not list is refused."""
    enforce(open_intake.worker, Rules({"*": ["gid:5001"]}, own_uid=99))
    send_as(open_intake.spool.directory / "socket", 4001, 4001, [encode(b"t", b"")], groups=[5001])
    open_intake.take([])
    assert open_intake.refused() == {"not_permitted": 1}


def test_own_user_may_write_everywhere(intake: Intake) -> None:
    """The user that runs bruce owns the spool, and is never refused."""
    enforce(intake.worker, Rules({"*": []}))
    intake.take([encode(b"t", b"")])
    assert len(intake.stored()) == 1


def test_a_burst_is_salvaged_under_the_rules_of_that_time(intake: Intake) -> None:
    """Received, not stored, and then forbidden: after the crash it is refused, and counted once."""
    intake.queue([encode(b"a", b"1"), encode(b"c", b"2"), encode(b"a", b"3")])
    assert intake.receive() == 3
    enforce(intake.start(), Rules({"a": []}, own_uid=SOMEBODY))
    assert intake.worker.salvage() == 3
    assert intake.stored() == [encode(b"c", b"2")]
    assert refused_by_uid(intake, Reason.NOT_PERMITTED) == {os.getuid(): 2}
    assert intake.restart() == 0


def test_without_room_what_is_forbidden_keeps_its_reason(intake: Intake) -> None:
    """The ledger counts it as not permitted, not as without room."""
    enforce(intake.worker, Rules({"a": []}, own_uid=SOMEBODY))
    intake.queue([encode(b"a", b"1"), encode(b"b", b"2")])
    intake.worker._discard(intake.list_received(), 0)
    found = {(row.reason, row.topic): row.count for row in read_ledger(intake.spool.layout.ledger)}
    assert found == {(Reason.NOT_PERMITTED, b""): 1, (Reason.SPOOL_FULL, b"b"): 1}


def test_the_largest_burst_of_forbidden_ones_is_a_frame(memory: Path) -> None:
    """Rows find room beside nothing, and one sender has one row, whatever its topics."""
    intake = Intake(memory, slots=64)
    enforce(intake.worker, Rules({"*": []}, own_uid=SOMEBODY))
    fast = connect(memory / "socket")
    for n in range(8):
        fast.send(encode(b"t%d" % n, b""))
    intake.take([])
    assert intake.refused() == {"not_permitted": 8}
    assert [(reason, count) for reason, count, _ in intake.frames()[0].rows] == [(Reason.NOT_PERMITTED, 8)]
    fast.close()
    intake.close()
