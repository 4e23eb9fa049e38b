"""The errors of the intake: one base, one sentence each, and the exit codes of those that a user can mend."""

from __future__ import annotations

import pytest

from cli.terminal.errors import FOUND, UNREACHABLE, USAGE, exit_code
from ingest import errors
from ingest.errors import BadAccessRule, BadSocket, BadStaging, IngestError, NoAccounts
from tests.error_trees import drawn_tree, real_tree, unsaid


def test_one_base_is_enough() -> None:
    """`except IngestError` catches each, and the docstring puts those that it draws there, too."""
    assert {base for name, base in real_tree(errors).items() if name != "IngestError"} == {"IngestError"}
    assert drawn_tree(errors) == real_tree(errors)


def test_each_is_raised_with_a_sentence() -> None:
    """No place in the code raises one without words, with several lines, or with a full stop."""
    assert unsaid(errors) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (BadAccessRule("pay.*", "there is no user 'x'"), ['[access] "pay.*": ', "there is no user 'x'"]),
        (NoAccounts(9.6), ["within 10 s", "/etc/nsswitch.conf", "uid:NUMBER in [access]"]),
    ],
    ids=["BadAccessRule", "NoAccounts"],
)
def test_the_rules_of_access_are_named(error: IngestError, words: list[str]) -> None:
    """The sentence leads to the table and its pattern, or to what to look at, and what to write instead."""
    assert [one for one in words if one not in str(error)] == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadSocket("x"), USAGE),
        (BadAccessRule("x", "y"), USAGE),
        (NoAccounts(1), UNREACHABLE),
        (BadStaging("x"), FOUND),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_exit_code_says_who_can_mend_it(error: IngestError, code: int) -> None:
    """2 for the configuration, 3 for accounts that do not answer, 1 for memory that is not ours."""
    assert exit_code(error) == code
