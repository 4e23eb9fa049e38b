"""bruce.toml as the doctor sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.doctor import Finding, Level
from cli.doctor.examination import load

KAFKA = '[kafka]\n"bootstrap.servers" = "localhost:9"\n'
LETTERS = '[dispatch]\ndead_letter_topic = "dead"\n'


def findings(directory: Path, text: str, mode: int = 0o644) -> list[Finding]:
    """The findings for a file."""
    file = directory / "bruce.toml"
    file.write_text(text)
    file.chmod(mode)
    return load(file)[1]


def test_nothing_to_say(tmp_path: Path) -> None:
    """A file that leaves the promises unchanged gives no finding."""
    assert [one.level for one in findings(tmp_path, KAFKA + LETTERS)] == [Level.OK]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[spool]\nmax_bites = 1\n", "no key 'max_bites'"),
        (KAFKA + '"no.such.property" = "1"\n', "no.such.property"),
        (KAFKA + '[topics."t"]\npartitioner = "nowhere:function"\n', "nowhere"),
    ],
)
def test_what_the_daemon_would_not_start_with(tmp_path: Path, text: str, words: str) -> None:
    """It is a problem, and the other checks run without a configuration."""
    config, (found,) = load(Path(tmp_path / "none.toml"))
    assert (config, found.level) == (None, Level.PROBLEM)
    (found,) = findings(tmp_path, text)
    assert (found.level, words in found.sentence) == (Level.PROBLEM, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (KAFKA + '"acks" = "1"\n' + LETTERS, '"acks" is 1'),
        (KAFKA + '"acks" = "0"\n' + LETTERS, "lost on the way count as delivered"),
        (KAFKA, "counted, and gone"),
    ],
)
def test_weaker_than_need_be(tmp_path: Path, text: str, words: str) -> None:
    """Doctor advises against settings that weaken a promise."""
    (found,) = (one for one in findings(tmp_path, text) if one.level is not Level.OK)
    assert (found.level, words in found.sentence) == (Level.ADVICE, True)


def test_a_password_that_everybody_can_read(tmp_path: Path) -> None:
    """The file's mode is a problem; the password itself is not shown."""
    text = KAFKA + '"sasl.password" = "s3cret"\n' + LETTERS
    assert [one.level for one in findings(tmp_path, text, 0o640)] == [Level.OK]
    wrong = findings(tmp_path, text, 0o644)[-1]
    assert (wrong.level, wrong.remedy) == (Level.PROBLEM, f"chmod o-rwx {tmp_path / 'bruce.toml'}")
    assert "s3cret" not in str(findings(tmp_path, text))
