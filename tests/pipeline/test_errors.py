"""The errors of jobs: one tree, one sentence each, and the exit codes in which they end."""

from __future__ import annotations

import pytest

from cli.terminal.errors import FOUND, UNFINISHED, UNREACHABLE, USAGE, exit_code
from pipeline import errors
from pipeline.errors import PipelineError
from tests.error_trees import drawn_tree, real_tree, unsaid

CODES = {
    FOUND: ["PipelineError", "BadSchema", "LeaseLost"],
    UNFINISHED: ["JobFailed", "ArchiveConflict", "SegmentGone"],
    USAGE: ["MissingSpark", "MissingEngine", "BadOption", "BadQuery"],
    UNREACHABLE: ["NotLent", "NoWitness"],
}


def test_the_docstring_draws_the_tree() -> None:
    """Each class is in it, under its base: a segment that is gone is a job that failed."""
    assert drawn_tree(errors) == real_tree(errors)
    kinds = [getattr(errors, name) for name in real_tree(errors)]
    assert all(issubclass(kind, PipelineError) for kind in kinds)


def test_each_is_raised_with_a_sentence() -> None:
    """No place in the code raises one without words, with several lines, or with a full stop."""
    assert unsaid(errors) == []


@pytest.mark.parametrize("code", CODES)
def test_the_exit_code_says_what_was_wrong(code: int) -> None:
    """2 for the request and the installation, 3 for an owner that does not answer, 4 for a job that fails."""
    assert [name for name in real_tree(errors) if exit_code(getattr(errors, name)("x")) == code] == CODES[
        code
    ]
