"""The witness's document: what is read of it, and that nothing in it is believed before it is checked."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from status import witness as module
from status.witness import MOST_BYTES, STALE_S, Verdict, Witness, WitnessView, parse, summed

NOW_S = 1_800_000_000.0
SPOOL, OTHER = "0" * 31 + "1", "f" * 32
COMPLETE = {
    "judged": 40,
    "missing": 0,
    "late": 0,
    "duplicated": 0,
    "altered_blocks": 0,
    "uncompared_blocks": 0,
}


def spool(uuid: str = SPOOL, host: str = "alpha", **counts: int) -> dict[str, Any]:
    """A spool whose messages are all there, but for these counts."""
    return {"spool": uuid, "host": host, **COMPLETE, **counts}


def tier(name: str = "main", *spools: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A tier with these spools, by default with one."""
    about = {"tier": name, "lag": 0, "records": 40, "skipped": 0, "error": ""}
    return {**about, "spools": list(spools or (spool(),)), **more}


def document(*tiers: dict[str, Any], written_s: float = NOW_S) -> dict[str, Any]:
    """A document with these tiers, by default with one."""
    return {"version": 1, "written_s": written_s, "tiers": list(tiers or (tier(),))}


def view(*tiers: dict[str, Any], written_s: float = NOW_S, problem: str = "") -> WitnessView:
    """Such a document, as it is read."""
    written, found = parse(json.dumps(document(*tiers, written_s=written_s)).encode())
    return WitnessView(written, found, problem)


def write(directory: Path, *tiers: dict[str, Any], written_s: float | None = None) -> Path:
    """Put such a document into a directory, as `brucectl witness run` does; written now by default."""
    directory.mkdir(exist_ok=True)
    told = document(*tiers, written_s=time.time() if written_s is None else written_s)
    (directory / "new").write_text(json.dumps(told))
    return (directory / "new").rename(directory / module.FILE)


def seen(directory: Path, now_s: float = NOW_S) -> WitnessView:
    """One look at a directory at this time."""
    return Witness(directory, lambda: now_s).look()


def test_it_reads_each_figure(tmp_path: Path) -> None:
    """Tiers, spools and their sums; no figure is in the place of another."""
    first = spool(SPOOL, "a", **dict(zip(COMPLETE, range(1, 7), strict=True)))
    second = spool(OTHER, "b", **dict(zip(COMPLETE, range(10, 70, 10), strict=True)))
    write(tmp_path, tier("east", first, second, lag=7, records=8, skipped=9, error="away"), written_s=NOW_S)
    found = seen(tmp_path)
    (one,) = found.tiers
    assert (found.written, found.problem) == ("2027-01-15T08:00:00Z", "")
    assert (one.tier, one.lag, one.records, one.skipped, one.error) == ("east", 7, 8, 9, "away")
    assert [(each.spool, each.host) for each in one.spools] == [(SPOOL, "a"), (OTHER, "b")]
    assert one.spools[0].verdict == Verdict(1, 2, 3, 4, 5, 6)
    assert one.verdict == Verdict(11, 22, 33, 44, 55, 66)
    assert found.unread == ["the witness cannot read tier east: away"]


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (Verdict(9), "complete"),
        (Verdict(9, duplicated=2, uncompared_blocks=3), "complete"),
        (Verdict(9, missing=1), "1 missing"),
        (Verdict(9, late=1200), "1,200 late"),
        (Verdict(9, altered_blocks=1), "1 block altered"),
        (Verdict(9, 1, 2, 3, 4, 5), "1 missing, 2 late, 4 blocks altered"),
        (Verdict(), "nothing is judged yet"),
    ],
)
def test_a_verdict_in_words(verdict: Verdict, words: str) -> None:
    """Complete unless something is missing, late or altered; not before anything is judged."""
    assert verdict.words == words


def test_what_is_lost_is_one_sentence() -> None:
    """The worst spool by tier, and how many are like it; nothing for those that are late or twice there."""
    late = tier("main", spool(late=5, duplicated=2))
    assert view(late).loss == view().loss == ""
    worst = tier("lake", spool(OTHER, "beta\n", missing=1), spool(missing=7, altered_blocks=1))
    assert view(late, worst).loss == (
        f"the witness finds in tier lake, of spool {SPOOL} of alpha: 7 missing, 1 block altered; "
        "1 more verdict like this"
    )
    assert "\n" not in view(tier("lake", spool(OTHER, "beta\n", missing=1))).loss


def without(key: str, found: dict[str, Any]) -> dict[str, Any]:
    """The same, without a member."""
    return {name: value for name, value in found.items() if name != key}


REFUSED = {
    "another version": ({**document(), "version": 2}, "its version is 2, and this release reads 1"),
    "true for 1": ({**document(), "version": True}, "its version is True, and this release reads 1"),
    "no version": (without("version", document()), "it has no version"),
    "no time": (without("written_s", document()), "it has no written_s"),
    "a time before all": ({**document(), "written_s": -1}, "its written_s is no time"),
    "a time after all": ({**document(), "written_s": 1e300}, "its written_s is no time"),
    "a time in words": ({**document(), "written_s": "now"}, "its written_s is of the wrong type"),
    "a list": ([], "a list or a value is in the place of an object"),
    "a tier that is a number": ({**document(), "tiers": [7]}, "a list or a value is in the place of"),
    "tiers by name": ({**document(), "tiers": {"main": {}}}, "its tiers is of the wrong type"),
    "tiers without number": (document(*[tier(f"t{n}") for n in range(101)]), "it has 101 tiers"),
    "a tier without a name": (document(tier("")), "a tier has no name"),
    "a tier twice": (document(tier("a"), tier("a")), "tier a is in it twice"),
    "two names shown alike": (document(tier("a" * 300), tier("a" * 301)), " is in it twice"),
    "a spool twice": (document(tier("a", spool(), spool())), f"of tier a, spool {SPOOL} is in it twice"),
    "a spool by another name": (document(tier("a", spool("x"))), "a spool is not named by 32 hex digits"),
    "no count": (document(tier("a", without("late", spool()))), "it has no late"),
    "a count below 0": (document(tier("a", spool(missing=-1))), "its missing is no count"),
    "a count without end": (document(tier("a", lag=1 << 60)), "its lag is no count"),
    "half a message": (document(tier("a", spool(missing=0.5))), "its missing is of the wrong type"),  # type: ignore[arg-type]
    "true for a count": (document(tier("a", spool(missing=True))), "its missing is of the wrong type"),
    "no error": (document(tier(error=None)), "its error is of the wrong type"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_document_that_is_refused(tmp_path: Path, case: str) -> None:
    """It is a problem in one sentence; nothing of it is shown."""
    told, words = REFUSED[case]
    (tmp_path / module.FILE).write_text(json.dumps(told))
    found = seen(tmp_path)
    assert found.problem.startswith("the witness's document cannot be read: ")
    assert words in found.problem
    assert "\n" not in found.problem
    assert (found.tiers, found.written) == ((), None)


BYTES = {
    "nothing": (b"", "it is not JSON: "),
    "half of it": (json.dumps(document()).encode()[:-9], "it is not JSON: "),
    "other letters": (b'{"version": "\xff"}', "it is not UTF-8"),
    "nests": (b"[" * 200_000, "it is nested too deeply"),
    "not a number": (
        json.dumps(document(), allow_nan=True).replace("40", "NaN").encode(),
        "NaN is no number",
    ),
    "digits": (b'{"version": ' + b"9" * 5000 + b"}", "it is not JSON: "),
    "too much": (b" " * (MOST_BYTES + 1), "it has more than 8 MiB"),
}


@pytest.mark.parametrize("case", BYTES)
def test_bytes_that_are_no_document(tmp_path: Path, case: str) -> None:
    """A file of any content, and of any size, is a sentence."""
    data, words = BYTES[case]
    (tmp_path / module.FILE).write_bytes(data)
    problem = seen(tmp_path).problem
    assert problem.startswith("the witness's document cannot be read: ")
    assert words in problem
    assert len(problem) < 300


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PLACES = ("version", "written_s", "tiers", "tier", "lag", "spools", "error", "spool", "host", "judged")


@given(st.sampled_from(PLACES), JSON)
def test_any_value_in_any_place(place: str, value: Any) -> None:
    """A document is read, or refused by a ValueError with a sentence, and can be printed."""

    def put(found: Any) -> Any:
        if isinstance(found, list):
            return [put(one) for one in found]
        if not isinstance(found, dict):
            return found
        return {key: value if key == place else put(one) for key, one in found.items()}

    try:
        written, tiers = parse(json.dumps(put(document())).encode())
    except ValueError as error:
        str(error).encode()
    else:
        found = WitnessView(written, tiers)
        json.dumps([found.summary, found.as_json("")], ensure_ascii=False).encode()


def test_texts_are_harmless(tmp_path: Path) -> None:
    """No text commands a terminal, ends its line, is half a character, or is without end."""
    evil = "\x1b[2J\n\ud800" + "x" * 5000
    write(tmp_path, tier(evil, spool(host=evil), error=evil), written_s=NOW_S)
    (one,) = seen(tmp_path).tiers
    for text in (one.tier, one.spools[0].host, one.error):
        assert text.startswith("\\x1b[2J\\n?x")
        assert text.encode()
        assert len(text) < 320


def mkfifo(path: Path) -> None:
    """A pipe without a writer."""
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (mkfifo, "it is no file"),
        (Path.mkdir, "it is no file"),
        (lambda path: path.symlink_to(path), "symbolic"),
    ],
    ids=["pipe", "directory", "circle"],
)
def test_what_is_no_file(tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
    """A look at it comes back at once, with a sentence."""
    make(tmp_path / module.FILE)
    assert words in seen(tmp_path).problem


def test_before_the_witness_has_written(tmp_path: Path) -> None:
    """There is no document yet: that is said, and the first one is seen."""
    witness = Witness(tmp_path, lambda: NOW_S)
    found = witness.look()
    assert (found.problem, found.written, found.tiers) == (
        f"the witness has not written anything to {tmp_path} yet",
        None,
        (),
    )
    write(tmp_path, written_s=NOW_S)
    assert witness.look() == view()
    (tmp_path / module.FILE).unlink()
    assert witness.look() == found


@pytest.mark.parametrize(
    ("age_s", "words"),
    [
        (0, ""),
        (STALE_S, ""),
        (STALE_S + 1, "the witness has stopped: it wrote last at 2027-01-15T08:00:00Z"),
        (-60, ""),
        (-61, "the witness's document is from the future: a clock was set back"),
    ],
)
def test_how_old_it_is(tmp_path: Path, age_s: float, words: str) -> None:
    """A document that stays as it is becomes a problem, without being read again; its verdict stays."""
    write(tmp_path, written_s=NOW_S)
    found = seen(tmp_path, NOW_S + age_s)
    assert found == replace(view(), problem=words)


def test_it_is_read_when_it_has_changed(tmp_path: Path) -> None:
    """A look at the same file parses nothing; another file is seen, also one of the same size."""
    write(tmp_path, tier("a"), written_s=NOW_S)
    witness = Witness(tmp_path, lambda: NOW_S)
    with mock.patch.object(module, "parse", wraps=parse) as parsing:
        assert [witness.look().tiers[0].tier for _ in range(3)] == ["a"] * 3
        assert parsing.call_count == 1
        write(tmp_path, tier("b"), written_s=NOW_S)
        assert [witness.look().tiers[0].tier for _ in range(3)] == ["b"] * 3
        assert parsing.call_count == 2
        (tmp_path / module.FILE).write_text("{")
        problems = {witness.look().problem for _ in range(3)}
        assert (len(problems), parsing.call_count) == (1, 3)


def test_the_worst_come_first() -> None:
    """Missing and altered before late, in any tier; others in the order of the document."""
    rows = view(
        tier("a", spool(), spool(OTHER, late=3)), tier("b", spool(altered_blocks=1), spool(OTHER, missing=2))
    ).rows
    assert [(tier.tier, one.spool) for tier, one in rows] == [
        ("b", OTHER),
        ("b", SPOOL),
        ("a", OTHER),
        ("a", SPOOL),
    ]


def test_sums_of_nothing() -> None:
    """A tier without spools has a verdict, too."""
    assert summed([]) == Verdict()
    assert view(tier("a", spools=[])).tiers[0].verdict == Verdict()
