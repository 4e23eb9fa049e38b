"""The options of `format("bruce")` are as documented, or refused with a sentence."""

from __future__ import annotations

import pytest

from pipeline.errors import BadOption
from pipeline.source.options import (
    OF_READER,
    OF_STREAM,
    Choice,
    batch_bytes,
    check_known,
    fails_on_loss,
    mode_of,
    paths_of,
    pushes_filters,
)


def test_one_that_does_not_exist() -> None:
    """It is refused, with those that do; a stream has others than a query; case does not matter."""
    check_known({"path": "/s", "PATHS": "[]", "Mode": "failfast", "fromsequence": "1"}, OF_READER)
    check_known({"maxBytesPerTrigger": "1"}, OF_STREAM)
    with pytest.raises(BadOption, match="there is no option 'pushFilter'; the options are host, mode, "):
        check_known({"pushFilter": "true"}, OF_READER)
    with pytest.raises(BadOption, match=r"no option 'fromSequence'.* maxBytesPerTrigger$"):
        check_known({"fromSequence": "1"}, OF_STREAM)


def test_defaults() -> None:
    """All of each spool, damage as rows, an error when segments are removed, no filters."""
    assert Choice.of({}) == Choice(0, {}, {})
    assert (mode_of({}), fails_on_loss({}), pushes_filters({})) == ("permissive", True, False)
    assert batch_bytes({}) is None


def test_a_choice() -> None:
    """One number for all spools, or one by spool; segments by spool."""
    assert Choice.of({"fromSequence": "7"}).begin("ab") == 7
    chosen = Choice.of({"fromSequence": '{"ab": 5}', "segments": '{"ab": [5, 9]}'})
    assert (chosen.begin("ab"), chosen.begin("cd"), chosen.segments) == (5, 0, {"ab": [5, 9]})


@pytest.mark.parametrize("text", ["x", "[1]", '{"ab": -1}', '{"ab": true}', '{"ab": "1"}', "-1"])
def test_no_sequence(text: str) -> None:
    """A text that is no number, nor numbers by spool, is refused."""
    with pytest.raises(BadOption, match=r"fromSequence = .* is no number"):
        Choice.of({"fromSequence": text})


@pytest.mark.parametrize("text", ["x", "[1]", '{"ab": 1}'])
def test_no_segments(text: str) -> None:
    """A text without a list by spool is refused."""
    with pytest.raises(BadOption, match=r"segments = .* is no JSON object of lists"):
        Choice.of({"segments": text})


@pytest.mark.parametrize("text", ["", "0", "x", "-5"])
def test_no_size(text: str) -> None:
    """A batch has at least a byte."""
    with pytest.raises(BadOption, match="is no number of bytes"):
        batch_bytes({"maxBytesPerTrigger": text})


def test_no_value() -> None:
    """A word that is none of an option's is refused with those that are."""
    with pytest.raises(BadOption, match="mode = 'strict' is none of permissive, dropmalformed, failfast"):
        mode_of({"mode": "strict"})
    assert mode_of({"mode": "FailFast"}) == "failfast"


def test_no_path() -> None:
    """A query of nothing is refused; a path and a list of them are all read."""
    with pytest.raises(BadOption, match="no spool is named"):
        paths_of({})
    assert paths_of({"path": "/a", "paths": '["/b"]'}) == ["/b", "/a"]
