"""Kafka's secrets from systemd's credentials."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import app
from cli.config.config import Config, config_for, load_config
from cli.terminal.errors import USAGE, ConfigError
from dispatch.client import check
from dispatch.consumer import open_consumer
from dispatch.errors import BadProperty
from tests.daemon import RunningBruce

KAFKA = '[kafka]\n"bootstrap.servers" = "localhost:9092"\n'
SECRET = "hunter2 ünd more"
TEXT = f"""{KAFKA}
"security.protocol" = "sasl_plaintext"
"sasl.mechanism" = "SCRAM-SHA-512"
"sasl.username" = "bruce"
"sasl.password.credential" = "kafka-password"
"""


def load(directory: Path, text: str = TEXT, **environ: str) -> Config:
    """The configuration from this text; credentials are in the folder `handed`."""
    file = directory / "bruce.toml"
    file.write_text(text, encoding="utf-8")
    return load_config(file, environ={"CREDENTIALS_DIRECTORY": str(directory / "handed"), **environ})


def hand_over(directory: Path, data: bytes) -> None:
    """Write the file like systemd."""
    (directory / "handed").mkdir()
    (directory / "handed/kafka-password").write_bytes(data)


@pytest.mark.parametrize("end", ["", "\n"], ids=["bare", "with a newline"])
def test_a_credential_is_the_value(tmp_path: Path, end: str) -> None:
    """The value is given to librdkafka; an editor's newline at the end is no part of a password."""
    hand_over(tmp_path, (SECRET + end).encode())
    config = load(tmp_path)
    assert config.dispatch.kafka["sasl.password"] == SECRET
    check(config.dispatch)
    assert (
        load(tmp_path, KAFKA, BRUCE_KAFKA_SASL_PASSWORD_CREDENTIAL="kafka-password").dispatch.kafka[
            "sasl.password"
        ]
        == SECRET
    )


def test_another_cluster_has_credentials_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that --kafka names is read in the same way."""
    hand_over(tmp_path, SECRET.encode())
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "handed"))
    (other := tmp_path / "other.toml").write_text(TEXT, encoding="utf-8")
    assert config_for(None, tmp_path, other).dispatch.kafka["sasl.password"] == SECRET


@pytest.mark.parametrize("data", [None, b"\xff\xfe"], ids=["missing", "no text"])
def test_without_it_nothing_is_sent(tmp_path: Path, data: bytes | None) -> None:
    """A use of Kafka without the credential fails: the error names it and says how to provide it."""
    if data:
        hand_over(tmp_path, data)
    config = load(tmp_path)
    for use in (lambda: check(config.dispatch), lambda: open_consumer(config.dispatch.kafka)):
        with pytest.raises(BadProperty, match=r"'sasl.password': .* 'kafka-password' .*LoadCredential="):
            use()


def test_the_daemon_does_not_start_without(tmp_path: Path) -> None:
    """One sentence, exit code 2, and no spool is created."""
    bruce = RunningBruce(
        tmp_path, "localhost:9092", settings={"kafka": {"sasl.password.credential": "kafka-password"}}
    )
    try:
        bruce.start(wait=False)
        assert bruce.await_end() == USAGE
        assert bruce.logged("there is no credential 'kafka-password' that can be read") == 1
        assert not bruce.logged("Traceback")
        assert not bruce.spool.exists()
    finally:
        bruce.close()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('"sasl.password.credential" = "../shadow"', "without a slash"),
        ('"sasl.password.credential" = 5', "without a slash"),
        ('"sasl.password" = "x"\n"sasl.password.credential" = "y"', "give one of them"),
    ],
)
def test_a_wrong_name_is_refused(tmp_path: Path, line: str, said: str) -> None:
    """A path that leads out of the folder is refused; so is a property with two values."""
    with pytest.raises(ConfigError, match=said):
        load(tmp_path, KAFKA + line)


def test_a_name_is_shown_and_no_secret(tmp_path: Path) -> None:
    """`config show` names the credential; its content is in no output."""
    hand_over(tmp_path, SECRET.encode())
    load(tmp_path)
    shown = CliRunner().invoke(
        app.control,
        ["config", "show", "--config", str(tmp_path / "bruce.toml")],
        env={"CREDENTIALS_DIRECTORY": str(tmp_path / "handed")},
    )
    assert '"sasl.password.credential" = "kafka-password"' in shown.output
    assert SECRET not in shown.output
