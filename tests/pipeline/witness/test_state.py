"""The file of a witness: after a crash it is as the last checkpoint left it, and reading goes on there."""

from __future__ import annotations

import copy
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pipeline.errors import NoWitness
from pipeline.witness import state as module
from pipeline.witness.seen import PART_BITS
from pipeline.witness.state import NAME, BadWitness, WitnessState
from pipeline.witness.tier import UNTIMED, TierState
from spool.errors import SpoolBusy
from tests.daemon import ROOT
from tests.pipeline.witness import golden
from tests.pipeline.witness.model import Model, Seen, columns
from tests.pipeline.witness.test_tier import BURSTS, SPOOLS
from tests.users import NOBODY, as_user

GOLDEN = ROOT / "tests" / "golden" / "witness-v1.db"
AT = ("topic", 0)
TIERS = ("near", "far")


class WitnessMachine(RuleBasedStateMachine):
    """The model: a log of bursts, and for each tier what it has seen of the bursts before its position."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
        self.state = WitnessState(self.directory)
        self.log = list[list[Seen]]()
        self.models = {name: Model() for name in TIERS}
        self.written = copy.deepcopy(self.models)
        self.positions = dict.fromkeys(TIERS, 0)

    def read(self, name: str) -> None:
        """Read a tier to the end of the log."""
        tier = self.state.tier(name)
        for burst in self.log[tier.positions.get(AT, 0) :]:
            tier.absorb(*columns(burst))
            self.models[name].absorb(burst)
            tier.positions[AT] = tier.positions.get(AT, 0) + 1

    @rule(burst=BURSTS, names=st.sampled_from([TIERS, TIERS[:1], TIERS[1:]]))
    def absorb(self, burst: list[Seen], names: tuple[str, ...]) -> None:
        """A burst comes, and some tiers are read."""
        self.log.append(burst)
        for name in names:
            self.read(name)

    @rule(name=st.sampled_from(TIERS), spool=st.sampled_from(SPOOLS), end=st.integers(0, 9000))
    def watch(self, name: str, spool: str, end: int) -> None:
        """One more spool, or another end."""
        self.state.tier(name).watch({spool: end})
        self.models[name].watch(spool, end)

    @rule(name=st.sampled_from(TIERS), part=st.floats(0, 1), extra=st.integers(0, 9000))
    def settle(self, name: str, part: float, extra: int) -> None:
        """A share of the blocks that have sums is settled, and one more."""
        tier = self.state.tier(name)
        for spool in tier.spools():
            blocks = tier.spool(spool).sums()[0]
            settled = [*blocks[: int(part * len(blocks))].tolist(), extra]
            tier.spool(spool).settle(np.array(settled))
            self.models[name].settle(spool, settled)

    @rule()
    def checkpoint(self) -> None:
        """All is written."""
        self.state.checkpoint()
        self.written = copy.deepcopy(self.models)
        self.positions = {name: self.state.tier(name).positions.get(AT, 0) for name in TIERS}

    @rule()
    def crash(self) -> None:
        """The process dies, and the next one goes on at the positions in the file."""
        self.state.close()
        self.state = WitnessState(self.directory)
        self.models = copy.deepcopy(self.written)
        assert {name: self.state.tier(name).positions.get(AT, 0) for name in TIERS} == self.positions

    @rule()
    def look(self) -> None:
        """A reader beside it sees the last checkpoint."""
        reader = WitnessState(self.directory, readonly=True)
        for name in TIERS:
            self.written[name].check(reader.tier(name))
            assert reader.tier(name).positions.get(AT, 0) == self.positions[name]
        reader.close()

    @invariant()
    def is_what_the_model_saw(self) -> None:
        """Both tiers."""
        for name in TIERS:
            self.models[name].check(self.state.tier(name))

    def teardown(self) -> None:
        """Leave nothing."""
        self.state.close()
        shutil.rmtree(self.directory)


TestWitnessMachine = WitnessMachine.TestCase
TestWitnessMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def burst_of(position: int) -> list[Seen]:
    """A burst at a position of a log that both processes know: with copies, out of order, some untimed."""
    chance = random.Random(position)
    return [
        Seen(
            chance.choice(SPOOLS),
            max(0, position * 20 + chance.randint(-900, 60)),
            chance.getrandbits(62),
            chance.choice((UNTIMED, 1, 2)),
        )
        for _ in range(60)
    ]


def absorb_for_ever(directory: Path) -> None:
    """The child: goes on at its position, and writes after some bursts; settles a block now and then."""
    state = WitnessState(directory)
    tier = state.tier("near")
    tier.watch(dict.fromkeys(SPOOLS, 0))
    while True:
        position = tier.positions.get(AT, 0)
        tier.absorb(*columns(burst_of(position)))
        tier.positions[AT] = position + 1
        if position % 3 == 0:
            state.checkpoint()
            os.write(1, b"written\n")


@pytest.mark.crash
def test_each_record_counts_once_after_sigkill(tmp_path: Path) -> None:
    """A process that absorbs and writes is killed at any time: the file has all up to its positions."""
    code = f"from {__name__} import *; absorb_for_ever(Path({str(tmp_path)!r}))"
    model, position, chance = Model(), 0, random.Random(3)
    for spool in SPOOLS:
        model.watch(spool, 0)
    for _ in range(6):
        with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as child:
            assert child.stdout
            assert child.stdout.readline()
            time.sleep(chance.uniform(0, 0.15))
            child.send_signal(signal.SIGKILL)
        state = WitnessState(tmp_path)
        tier = state.tier("near")
        assert tier.positions[AT] > position
        for at in range(position, tier.positions[AT]):
            model.absorb(burst_of(at))
        position = tier.positions[AT]
        model.check(tier)
        state.close()


def test_a_golden_file_is_read(tmp_path: Path) -> None:
    """A file of version 1 is read, to look at and to go on with."""
    shutil.copy(GOLDEN, tmp_path / NAME)
    for readonly in (True, False):
        state = WitnessState(tmp_path, readonly=readonly)
        assert state.tiers() == ["main", "empty"]
        tier = state.tier("main")
        golden.model().check(tier)
        assert (tier.positions, tier.facts, tier.skipped) == (golden.POSITIONS, golden.FACTS, 12)
        assert state.tier("empty").spools() == []
        state.close()


def test_this_version_writes_the_same(tmp_path: Path) -> None:
    """Each table has the rows of the golden file: a change of the format raises its version."""
    state = WitnessState(tmp_path)
    golden.fill(state.tier("main"))
    # A fact that the release did not have which wrote the golden file.
    state.tier("main").take_news()
    del state.tier("main").facts["strangers"]
    state.tier("empty")
    state.checkpoint()
    state.close()
    assert dump(tmp_path / NAME) == dump(GOLDEN)


def dump(path: Path) -> list[str]:
    """The file in SQL, and its version."""
    db = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    lines = [*db.iterdump(), str(db.execute("PRAGMA user_version").fetchone())]
    db.close()
    return lines


def filled(directory: Path) -> Path:
    """A file with something in each table."""
    state = WitnessState(directory)
    golden.fill(state.tier("main"))
    state.checkpoint()
    state.close()
    return directory / NAME


def change(path: Path, sql: str) -> None:
    """Change a file as no witness does."""
    db = sqlite3.connect(path)
    db.execute(sql)
    db.commit()
    db.close()


@pytest.mark.parametrize("readonly", [True, False])
def test_a_later_version_is_refused(tmp_path: Path, *, readonly: bool) -> None:
    """One sentence names the file and both versions, and the file stays."""
    path = filled(tmp_path)
    change(path, f"PRAGMA user_version = {module.VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(BadWitness, match=r"witness.db has format version 2, and this release knows 1: use"):
        WitnessState(tmp_path, readonly=readonly)
    assert path.read_bytes() == before


DAMAGES = [
    "UPDATE witness_bitmaps SET data = zeroblob(8) WHERE name = 'seen'",
    "UPDATE witness_bitmaps SET name = 'other' WHERE name = 'seen'",
    "UPDATE witness_blocks SET count = 4097",
    "UPDATE witness_blocks SET times = 4294967296",
    "UPDATE witness_blocks SET spool = 77 WHERE spool = 2",
    "UPDATE witness_spools SET tier = 77",
    "UPDATE witness_spools SET uuid = x'00' WHERE spool = 2",
    "UPDATE witness_spools SET summed_end = 'x'",
    "UPDATE witness_positions SET tier = 77",
    "UPDATE witness_tiers SET facts = '{'",
    "UPDATE witness_tiers SET facts = '1'",
    "UPDATE witness_tiers SET records = 'x'",
    "DROP TABLE witness_blocks",
    "PRAGMA user_version = 0",
]


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, damage: str, *, readonly: bool) -> None:
    """It names the file, and the way out; the lock is free then."""
    change(filled(tmp_path), damage)
    for _ in range(2):
        with pytest.raises(BadWitness, match=rf"\A{tmp_path}/witness.db cannot be read \(.+\): move it away"):
            WitnessState(tmp_path, readonly=readonly)


@pytest.mark.parametrize("readonly", [True, False])
def test_rotten_bytes_are_one_sentence_or_read(tmp_path: Path, *, readonly: bool) -> None:
    """Pages of noise, a file cut short, and another file: no other error comes of them."""
    whole, chance = filled(tmp_path).read_bytes(), random.Random(5)
    refused = 0
    for _ in range(60):
        rotten = bytearray(whole)
        at = chance.randrange(len(rotten) - 64)
        rotten[at : at + 64] = chance.randbytes(64)
        (tmp_path / NAME).write_bytes(rotten[: chance.choice((len(whole), at + 64))])
        try:
            WitnessState(tmp_path, readonly=readonly).close()
        except BadWitness:
            refused += 1
    assert refused > 20
    for other in (b"text" * 2000, os.urandom(9000)):
        (tmp_path / NAME).write_bytes(other)
        with pytest.raises(BadWitness, match="cannot be read"):
            WitnessState(tmp_path, readonly=readonly)


def test_there_is_one_writer(tmp_path: Path) -> None:
    """A second one is refused while the first one lives; readers are not."""
    state = WitnessState(tmp_path)
    with pytest.raises(SpoolBusy, match="it is already the directory of a witness"):
        WitnessState(tmp_path)
    WitnessState(tmp_path, readonly=True).close()
    state.close()
    WitnessState(tmp_path).close()


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    """A reader makes no file, and an empty one that a killed witness left has no tiers."""
    with pytest.raises(NoWitness, match="is not there: no witness has run in this directory"):
        WitnessState(tmp_path, readonly=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / NAME).touch()
    for readonly in (True, False):
        state = WitnessState(tmp_path, readonly=readonly)
        assert state.tiers() == []
        state.close()


@pytest.mark.parametrize("is_running", [True, False])
def test_another_user_may_read(tmp_path: Path, *, is_running: bool) -> None:
    """One who may only read the directory reads the last checkpoint, beside a witness and without one."""
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    state = WitnessState(directory)
    golden.fill(state.tier("main"))
    state.checkpoint()
    if not is_running:
        state.close()
    directory.chmod(0o755)

    def read() -> None:
        golden.model().check(WitnessState(directory, readonly=True).tier("main"))

    try:
        assert as_user(NOBODY, read) == 0
    finally:
        if is_running:
            state.close()
        shutil.rmtree(directory)


def test_a_checkpoint_that_fails_is_written_by_the_next(tmp_path: Path) -> None:
    """A full disk is one sentence; nothing of it is in the file, and nothing is lost."""
    state = WitnessState(tmp_path)
    golden.fill(state.tier("main"))
    pages = state._db.execute("PRAGMA max_page_count").fetchone()[0]
    state._db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(BadWitness, match=r"witness.db cannot be written: database or disk is full"):
        state.checkpoint()
    reader = WitnessState(tmp_path, readonly=True)
    assert reader.tiers() == []
    reader.close()
    state._db.execute(f"PRAGMA max_page_count = {pages}")
    state.checkpoint()
    reader = WitnessState(tmp_path, readonly=True)
    golden.model().check(reader.tier("main"))
    reader.close()
    state.close()


def test_positions_that_are_gone_are_gone(tmp_path: Path) -> None:
    """A topic that the reader takes out of the positions does not come back; NumPy's numbers are numbers."""
    state = WitnessState(tmp_path)
    state.tier("main").positions |= {("a", 0): 1, ("b", 0): int(np.int64(2))}
    state.checkpoint()
    state.tier("main").positions.pop(("a", 0))
    state.tier("main").positions["b", 0] = np.int64(3)  # type: ignore[assignment]
    state.checkpoint()
    state.close()
    state = WitnessState(tmp_path, readonly=True)
    assert state.tier("main").positions == {("b", 0): 3}
    state.close()


def see_all(tier: TierState, end: int) -> None:
    """Let the first spool of a tier have been seen up to a sequence, without sums."""
    seen = tier.spool(SPOOLS[0]).sets["seen"]
    seen.bitmap.add_range(0, end)
    seen.parts.update(range((end >> PART_BITS) + 1))


def test_a_checkpoint_writes_only_changes(tmp_path: Path) -> None:
    """Of 100 million messages in 1,000 unsettled blocks, one more is a few pages; and none is nothing."""
    state = WitnessState(tmp_path)
    tier = state.tier("main")
    tier.watch({SPOOLS[0]: 10**8})
    see_all(tier, 10**8)
    tier.absorb(*columns([Seen(SPOOLS[0], 10**8 + at, 1, 1) for at in range(0, 4096 * 1000, 4096)]))
    state.checkpoint()
    wal = Path(f"{state.path}-wal")
    state._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    tier.absorb(*columns([Seen(SPOOLS[0], 77, 1, 1), Seen(SPOOLS[0], 10**8 + 1, 1, 1)]))
    state.checkpoint()
    assert 0 < wal.stat().st_size < 60_000 < state.path.stat().st_size
    state._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    state.checkpoint()
    assert wal.stat().st_size == 0
    state.close()


def test_a_settled_spool_is_small(tmp_path: Path) -> None:
    """100 million messages in a row, all of whose blocks are settled, are less than 100 KB."""
    state = WitnessState(tmp_path)
    tier = state.tier("main")
    tier.watch({SPOOLS[0]: 10**8})
    see_all(tier, 10**8)
    tier.spool(SPOOLS[0]).settle(np.arange(10**8 >> 12))
    state.checkpoint()
    state.close()
    assert state.path.stat().st_size < 100_000


def test_only_tiers_that_are_watched_count_and_in_their_order(tmp_path: Path) -> None:
    """Others keep what they have seen, for when they are watched again; before any order, all count."""
    with closing(WitnessState(tmp_path)) as state:
        for name in ("west", "old"):
            state.tier(name).records = 5
        assert state.tiers() == ["west", "old"]
        state.order(["east", "west"])
        state.checkpoint()
    with closing(WitnessState(tmp_path, readonly=True)) as state:
        assert state.tiers() == ["east", "west"]
        assert state.tier("old").records == 5


def test_damaged_facts_are_one_sentence(tmp_path: Path) -> None:
    """Uuids in them that are none."""
    with closing(WitnessState(tmp_path)) as state:
        state.tier("east").facts["strangers"] = "xyz"
        state.checkpoint()
    with pytest.raises(BadWitness, match="cannot be read"):
        WitnessState(tmp_path)
