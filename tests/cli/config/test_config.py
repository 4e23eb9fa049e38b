"""bruce.toml and the environment: which settings are accepted, and the error line for each wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from cli.config.config import EMBEDDED, Config, default_paths, find_file, given_settings, load_config
from cli.config.settings import as_toml
from cli.config.trial import try_parts
from cli.terminal.errors import USAGE, ConfigError, exit_code
from ingest.sockets.inputs import Input

KAFKA = '[kafka]\n"bootstrap.servers" = "localhost:9092"\n'


def load(directory: Path, text: str, **environ: str) -> Config:
    """The configuration from a file with this text, and these variables."""
    file = directory / "bruce.toml"
    file.write_text(text, encoding="utf-8")
    return load_config(file, environ=environ)


def refusal(directory: Path, text: str, **environ: str) -> tuple[str, str]:
    """(location, text) of the one line that this configuration is refused with."""
    with pytest.raises(ConfigError) as refused:
        load(directory, text, **environ)
    assert exit_code(refused.value) == USAGE
    line = str(refused.value)
    assert "\n" not in line
    where, _, what = line.partition(": ")
    return where, what


def test_the_witness(tmp_path: Path) -> None:
    """None unless its directory is named, by the file or a variable; a relative path is refused."""
    assert load(tmp_path, KAFKA).witness.directory is None
    assert load(tmp_path, KAFKA + '[witness]\ndirectory = "/w"').witness.directory == Path("/w")
    assert load(tmp_path, KAFKA, BRUCE_WITNESS_DIRECTORY="/v").witness.directory == Path("/v")
    assert refusal(tmp_path, KAFKA + '[witness]\ndirectory = "w"')[1].startswith(
        '[witness] directory = "w": '
    )


def test_dotted_keys_without_quotes(tmp_path: Path) -> None:
    """A property reads the same with its dots quoted or bare, though TOML sees tables in the second."""
    quoted = load(tmp_path, KAFKA + '"linger.ms" = 5\n[topics.t]\n"compression.type" = "lz4"')
    bare = load(
        tmp_path,
        '[kafka]\nbootstrap.servers = "localhost:9092"\nlinger.ms = 5\n[topics.t]\ncompression.type = "lz4"',
    )
    assert quoted == bare


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        (
            "BRUCE_SPOOL_MAX_BYTES",
            "much",
            '[spool] max_bytes = "much": expected bytes, such as 67108864 or "64MiB", at least 1MiB',
        ),
        (
            "BRUCE_SPOOL_DIRECTRY",
            "/x",
            "[spool] has no key 'directry'; did you mean 'directory'?",
        ),
        ("BRUCE_DISPATCH_STAMP", "1", '[dispatch] stamp = "1": expected true or false'),
        (
            "BRUCE_SPOOL_SYNC_INTERVAL_MS",
            "-1",
            '[spool] sync_interval_ms = "-1": expected a whole number of ms from 1 to 10000',
        ),
        (
            "BRUCE_SPOOL_SEGMENT_BYTES",
            "2GiB",
            "[spool] max_bytes = 4294967296: expected at least 8589934592, which is 4 times segment_bytes",
        ),
        (
            "BRUCE_KAFKA_TRANSACTIONAL_ID",
            "x",
            "Kafka property 'transactional.id' in [kafka] cannot be set: "
            "the delivery mode decides about transactions",
        ),
        (
            "BRUCE_TOPICS_CLICKS_PARTITIONER",
            "any",
            "a topic is set in the file only; a variable's name cannot tell its dots and case",
        ),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, name: str, value: str, line: str) -> None:
    """An error about a setting from the environment names the variable, not the file."""
    assert refusal(tmp_path, KAFKA, **{name: value}) == (name, line)


def test_variables_override_the_file(tmp_path: Path) -> None:
    """A variable wins over the file, key by key."""
    config = load(
        tmp_path,
        KAFKA + '"linger.ms" = 7\n[spool]\ndirectory = "/file"\nsync_interval_ms = 9\n',
        BRUCE_SPOOL_DIRECTORY="/variable",
        BRUCE_SPOOL_MAX_BYTES="1GiB",
        BRUCE_DISPATCH_STAMP="false",
        BRUCE_DISPATCH_WINDOW_MESSAGES="17",
        BRUCE_KAFKA_BOOTSTRAP_SERVERS="other:9092",
        BRUCE_KAFKA_LOG_LEVEL="7",
    )
    assert config.spool.directory == Path("/variable")
    assert (config.spool.max_bytes, config.spool.sync_interval_ms) == (1 << 30, 9)
    assert (config.dispatch.stamp, config.dispatch.window_messages) == (False, 17)
    assert config.dispatch.kafka == {"bootstrap.servers": "other:9092", "linger.ms": "7", "log_level": "7"}


def test_variables_of_others_are_passed_over(tmp_path: Path) -> None:
    """A variable that names none of our tables is ignored."""
    config = load(tmp_path, KAFKA, BRUCE_VERIFY="1", BRUCE_LEE="x", BRUCE="y", SPOOL_DIRECTORY="/z")
    assert config == load(tmp_path, KAFKA)


def test_brokers_from_the_environment_complete_a_file(tmp_path: Path) -> None:
    """A file may leave the addresses of the brokers to the environment, under either of their names."""
    for name in ("BRUCE_KAFKA_BOOTSTRAP_SERVERS", "BRUCE_KAFKA_METADATA_BROKER_LIST"):
        config = load(tmp_path, "", **{name: "k:9092"})
        assert not config.first_try
        assert list(config.dispatch.kafka.values()) == ["k:9092"]


def test_first_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedded Kafka is used only if there is no file and no brokers are configured."""
    monkeypatch.setattr("cli.config.config.SYSTEM_FILE", tmp_path / "bruce.toml")
    first = load_config(environ={}, uid=0)
    assert first.first_try
    assert first.dispatch.kafka == {"bootstrap.servers": EMBEDDED}
    assert first.file is None
    assert (first.spool.max_bytes, first.spool.segment_bytes) == (64 << 20, 4 << 20)
    assert load_config(environ={"BRUCE_SPOOL_MAX_BYTES": "1GiB"}, uid=0).spool.max_bytes == 1 << 30
    assert load_config(environ={"BRUCE_SPOOL_DIRECTORY": "/x"}, uid=0).first_try
    assert not load_config(environ={"BRUCE_KAFKA_BOOTSTRAP_SERVERS": "k:1"}, uid=0).first_try
    (tmp_path / "bruce.toml").write_text(KAFKA)
    assert not load_config(environ={}, uid=0).first_try
    assert load_config(environ={}, uid=0).spool.max_bytes == 4 << 30


def test_default_paths() -> None:
    """Root with a file gets the system's places, others their own, by the XDG variables if they are set."""
    file = Path("/etc/bruce/bruce.toml")
    system = (Path("/var/lib/bruce"), Path("/run/bruce/bruce.sock"))
    assert default_paths(file, {}, 0) == system
    assert default_paths(None, {}, 0) == (Path.home() / ".local/state/bruce", system[1])
    xdg = {"XDG_STATE_HOME": "/state", "XDG_RUNTIME_DIR": "/runtime"}
    assert default_paths(None, xdg, 0) == (Path("/state/bruce"), system[1])
    assert default_paths(file, xdg, 1000) == (Path("/state/bruce"), Path("/runtime/bruce.sock"))
    service = {"STATE_DIRECTORY": "/var/lib/bruce", "RUNTIME_DIRECTORY": "/run/bruce", **xdg}
    assert default_paths(None, service, 995) == default_paths(None, service, 0) == system
    assert default_paths(None, {}, 1000) == (Path.home() / ".local/state/bruce", Path("/tmp/bruce-1000.sock"))


def test_which_file(fs: FakeFilesystem) -> None:
    """--config goes before BRUCE_CONFIG, and that before /etc/bruce/bruce.toml, which need not be there."""
    environ = {"BRUCE_CONFIG": "/from/environment.toml"}
    assert find_file(None, {}) is None
    assert find_file(None, {"BRUCE_CONFIG": ""}) is None
    fs.create_file("/etc/bruce/bruce.toml")
    named = Path("/named.toml")
    assert str(find_file(None, {})) == "/etc/bruce/bruce.toml"
    assert str(find_file(None, environ)) == "/from/environment.toml"
    assert find_file(named, environ) is named


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A given file that does not exist, is a directory, or is no text, is an error, without a default."""
    latin1 = tmp_path / "latin1.toml"
    latin1.write_bytes(b"# caf\xe9\n")
    for path, reason in {
        tmp_path / "missing.toml": "cannot be read: No such file or directory",
        tmp_path: "cannot be read: Is a directory",
        latin1: "is not UTF-8 text",
    }.items():
        with pytest.raises(ConfigError) as refused:
            load_config(environ={"BRUCE_CONFIG": str(path)})
        assert str(refused.value).startswith(f"{path}: {reason}")


def test_inputs_and_rules(tmp_path: Path) -> None:
    """Tables of [[input]] have modes of their own; `config show` prints them, and rules, in their order."""
    file = tmp_path / "bruce.toml"
    file.write_text(
        "[ingest]\nsocket_mode = '0600'\nsocket_group = 'g'\n"
        "[[input]]\ndatagram = '/b'\n[[input]]\nstream = '/a'\nmode = '0660'\ngroup = 'h'\n"
        "[[input]]\ntcp = 7000\n"
        "[access]\n'z.*' = ['user:u']\n'a' = []\n[kafka]\n'bootstrap.servers' = 'x'\n"
    )
    config = load_config(file, environ={}, uid=0)
    assert config.ingest.inputs == (
        Input("datagram", Path("/b"), 0o600, "g"),
        Input("stream", Path("/a"), 0o660, "h"),
        Input("tcp", 7000),
    )
    assert list(config.access.items()) == [("z.*", ("user:u",)), ("a", ())]
    shown = as_toml(given_settings(file, environ={}))
    again = tmp_path / "again.toml"
    again.write_text(shown)
    other = load_config(again, environ={}, uid=0)
    assert (other.ingest, list(other.access.items())) == (config.ingest, list(config.access.items()))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[access]\n'pay.*' = ['user:missing-user']",
            "[access] \"pay.*\": there is no user 'missing-user' on this host",
        ),
        (
            "[ingest]\nsocket_group = 'no-so'",
            '[ingest] socket_group = "no-so": there is no such group on this host',
        ),
        (
            "[[input]]\nstream = '/s'\ngroup = 'no-so'",
            '[[input]] group = "no-so": there is no such group on this host',
        ),
        (
            "[topics.t]\npartitioner = 'nope:x'",
            "[topics.\"t\"] partitioner: cannot load nope:x: No module named 'nope'",
        ),
        (
            "[topics.t]\n'acks' = 'few'",
            "Kafka property 'acks' in [topics.t]: Invalid value for configuration property",
        ),
        ("[status]\ntoken_file = '/no'", "[status] token_file /no cannot be read: No such file or directory"),
    ],
)
def test_what_only_the_parts_can_refuse(tmp_path: Path, text: str, line: str) -> None:
    """librdkafka, the host, a named file: one line has file, table and key, and the exit code is 2."""
    with pytest.raises(ConfigError) as refused:
        try_parts(load(tmp_path, KAFKA + text))
    assert str(refused.value).startswith(f"{tmp_path / 'bruce.toml'}: {line}")
    assert "\n" not in str(refused.value)
    assert exit_code(refused.value) == USAGE


def test_a_variable_that_librdkafka_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is named, not the file."""
    monkeypatch.setenv("BRUCE_KAFKA_LINGER_MX", "1")
    with pytest.raises(
        ConfigError, match=r"^BRUCE_KAFKA_LINGER_MX: .*'linger.mx' in \[kafka\]: No such"
    ) as refused:
        try_parts(load(tmp_path, KAFKA, BRUCE_KAFKA_LINGER_MX="1"))
    assert exit_code(refused.value) == USAGE
