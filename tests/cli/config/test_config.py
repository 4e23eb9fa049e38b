"""bruce.toml and the environment: which settings are accepted, and the error line for each wrong one.

These are the tests of `cli.config.settings`, too.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from cli.config.config import EMBEDDED, Config, default_paths, find_file, given_settings, load_config
from cli.config.settings import ACCESS_KEY, TABLES, TOPIC_KEYS, as_toml
from cli.config.trial import try_parts
from cli.terminal.errors import USAGE, ConfigError, exit_code
from ingest.sockets.inputs import Input
from router.limits import Rate

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


def test_every_key(tmp_path: Path) -> None:
    """Each key of the contract reaches the options that it is for."""
    config = load(
        tmp_path,
        """
        [ingest]
        datagram_socket = "/run/x.sock"
        [spool]
        directory = "/spool"
        max_bytes = "1GiB"
        segment_bytes = 1048576
        sync_interval_ms = 5
        sync_bytes = "1MiB"
        [dispatch]
        engine = "spark"
        mode = "at_least_once"
        stamp = false
        window_messages = 10
        window_bytes = "1MiB"
        drain_seconds = 60
        catch_up_bytes_per_second = "2MiB"
        [kafka]
        "bootstrap.servers" = "a:1,b:2"
        "linger.ms" = 5
        "enable.idempotence" = true
        [topics."clicks"]
        partitioner = "murmur2"
        rate = 500
        rate_excess = "discard"
        "compression.type" = "zstd"
        [topics."my.own"]
        partitioner = "my.module:choose"
        """,
    )
    assert config.ingest.datagram_socket == Path("/run/x.sock")
    assert (config.spool.directory, config.spool.max_bytes) == (Path("/spool"), 1 << 30)
    assert (config.spool.segment_bytes, config.spool.sync_bytes) == (1 << 20, 1 << 20)
    assert config.spool.sync_interval_ms == 5
    assert (config.dispatch.mode, config.dispatch.stamp) == ("at_least_once", False)
    assert (config.dispatch.window_messages, config.dispatch.window_bytes) == (10, 1 << 20)
    assert (config.dispatch.engine, config.dispatch.drain_seconds) == ("spark", 60)
    assert config.dispatch.kafka == {
        "bootstrap.servers": "a:1,b:2",
        "linger.ms": "5",
        "enable.idempotence": "true",
    }
    assert config.dispatch.topics == {"clicks": {"compression.type": "zstd"}}
    assert config.dispatch.catch_up_bytes_per_second == 2 << 20
    assert config.rates == {"clicks": Rate(500, discard=True)}
    assert config.partitioners == {"clicks": "murmur2", "my.own": "my.module:choose"}
    assert config.file == tmp_path / "bruce.toml"
    assert not config.first_try


def test_a_key_of_thousands_of_parts(tmp_path: Path) -> None:
    """It is refused, and does not take memory by the square of its parts; a long list is no such key."""
    tracemalloc.start()
    with pytest.raises(ConfigError, match="nested too deeply"):
        load(tmp_path, ".".join(["a"] * 6000) + " = 1")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 << 20
    brokers = ",".join(f"kafka-{number}.example.com:9092" for number in range(500))
    config = load(tmp_path, f'[kafka]\n"bootstrap.servers" = "{brokers}"')
    assert config.dispatch.kafka["bootstrap.servers"] == brokers


def test_dotted_keys_without_quotes(tmp_path: Path) -> None:
    """A property reads the same with its dots quoted or bare, though TOML sees tables in the second."""
    quoted = load(tmp_path, KAFKA + '"linger.ms" = 5\n[topics.t]\n"compression.type" = "lz4"')
    bare = load(
        tmp_path,
        '[kafka]\nbootstrap.servers = "localhost:9092"\nlinger.ms = 5\n[topics.t]\ncompression.type = "lz4"',
    )
    assert quoted == bare


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[spool]\nmax_byte = 1",
            "[spool] has no key 'max_byte'; did you mean 'max_bytes'?",
        ),
        (
            "[dispatch]\nzzz = 1",
            f"[dispatch] has no key 'zzz'; the keys are {', '.join(TABLES['dispatch'])}",
        ),
        (
            "[dispatch]\ndead_letter_topic = 'dead/letters'",
            '[dispatch] dead_letter_topic = "dead/letters": expected letters, digits, dots, dashes and '
            "underscores, at most 249",
        ),
        (
            "[topics.t]\nrate = 0",
            '[topics."t"] rate = 0: expected a whole number of messages a second from 1 to 1000000000',
        ),
        (
            '[topics.t]\nrate_excess = "discard"\n' + KAFKA,
            '[topics."t"] rate_excess says what to do beyond a rate: give a rate too',
        ),
        ("[spol]\n", "there is no table 'spol'; did you mean 'spool'?"),
        (
            "[x]\n",
            "there is no table 'x'; "
            "the tables are ingest, spool, dispatch, status, log, access, input, kafka, topics",
        ),
        (
            "directory = '/x'",
            "outside of a table there is no key 'directory'; "
            "the tables are ingest, spool, dispatch, status, log, access, input, kafka, topics",
        ),
        ("spool = 1", "'spool' is a table, [spool], and no value"),
        (
            "[spool]\nmax_bytes = '64MB'",
            '[spool] max_bytes = "64MB": expected bytes, such as 67108864 or "64MiB", at least 1MiB',
        ),
        (
            "[spool]\nsegment_bytes = 300000",
            '[spool] segment_bytes = 300000: expected bytes, such as 67108864 or "64MiB", '
            "at least 256KiB, a multiple of 4096",
        ),
        (
            "[spool]\nsegment_bytes = 4096",
            '[spool] segment_bytes = 4096: expected bytes, such as 67108864 or "64MiB", '
            "at least 256KiB, a multiple of 4096",
        ),
        (
            "[spool]\nmax_bytes = '1MiB'",
            "[spool] max_bytes = 1048576: expected at least 268435456, which is 4 times segment_bytes",
        ),
        (
            "[spool]\nsegment_bytes = '2GiB'",
            "[spool] max_bytes = 4294967296: expected at least 8589934592, which is 4 times segment_bytes",
        ),
        (
            "[spool]\nsync_interval_ms = 0",
            "[spool] sync_interval_ms = 0: expected a whole number of ms from 1 to 10000",
        ),
        (
            "[spool]\nsync_interval_ms = true",
            "[spool] sync_interval_ms = true: expected a whole number of ms from 1 to 10000",
        ),
        (
            "[spool]\nsync_interval_ms = 2.5",
            "[spool] sync_interval_ms = 2.5: expected a whole number of ms from 1 to 10000",
        ),
        (
            "[spool]\ndirectory = 'spool'",
            '[spool] directory = "spool": expected an absolute path of at most 4095 bytes',
        ),
        (
            f"[ingest]\ndatagram_socket = '/{'x' * 107}'",
            f'[ingest] datagram_socket = "/{"x" * 107}": expected an absolute path of at most 107 bytes',
        ),
        (
            "[dispatch]\nmode = 'twice'",
            '[dispatch] mode = "twice": expected "at_least_once" or "exactly_once" or "at_most_once"',
        ),
        ("[dispatch]\nstamp = 'no'", '[dispatch] stamp = "no": expected true or false'),
        (
            "[dispatch]\nwindow_messages = 1000001",
            "[dispatch] window_messages = 1000001: expected a whole number of messages from 1 to 1000000",
        ),
        (
            "[topics.t]\npartitioner = 'murmur3'",
            '[topics."t"] partitioner = "murmur3": expected "any", "round_robin", "partition_key", '
            '"murmur2", "crc32" or "module:function"',
        ),
        (
            "[topics.t]\n'linger.ms' = 1",
            f"[topics.\"t\"] has no key 'linger.ms'; the keys are {', '.join(TOPIC_KEYS)}",
        ),
        (
            "[topics.t]\n'compression.typ' = 'lz4'",
            "[topics.\"t\"] has no key 'compression.typ'; did you mean 'compression.type'?",
        ),
        (
            "[topics]\nt = 'any'",
            "[topics] 't' is no key; write [topics.\"NAME\"] for each topic",
        ),
        (
            "[topics.'a b']\n",
            "[topics.'a b'] is no name of a topic: letters, digits, '.', '_' and '-', at most 249",
        ),
        (
            "[kafka]\n'message.timeout.ms' = 1\n'bootstrap.servers' = 'x'",
            "Kafka property 'message.timeout.ms' in [kafka] cannot be set: "
            "messages wait in the spool without a time limit",
        ),
        (
            "[kafka]\n'sasl.password' = ['secret']",
            "[kafka] sasl.password: expected a string, a number, true or false",
        ),
        (
            "[spool]\n",
            "Kafka property 'bootstrap.servers' is missing: name at least one host:port, or \"embedded\" for "
            "a Kafka in memory that forgets everything at the end",
        ),
        (
            "[dispatch]\nengine = 'spark'\n[kafka]\n'bootstrap.servers' = 'embedded'",
            '[dispatch] engine = "spark": jobs cannot reach the embedded Kafka; name brokers in [kafka] '
            '"bootstrap.servers"',
        ),
        ("[spool", "is not TOML: Expected ']' at the end of a table declaration (at end of document)"),
    ],
)
def test_each_wrong_thing_has_its_line(tmp_path: Path, text: str, line: str) -> None:
    """One line names the file, the table, the key, and the values that would be right."""
    assert refusal(tmp_path, text) == (str(tmp_path / "bruce.toml"), line)


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
        ("[input]\ntcp = 1", "each input is a table of its own: write [[input]], in two brackets"),
        ("[[input]]\nmode = '0600'", "[[input]] no. 1: expected one of datagram, stream and tcp"),
        ("[[input]]\ntcp = 1\nmode = '0600'", "[[input]] no. 1: a TCP port has neither mode nor group"),
        (
            "[[input]]\ntcp = 1\n[[input]]\ndatagram = 'x'",
            '[[input]] no. 2: datagram = "x": expected an absolute path of at most 107 bytes',
        ),
        (
            "[[input]]\ntcp = 1\n[[input]]\ntcp = 1",
            "[[input]] tcp = 1: named twice; each place is one input",
        ),
        (
            "[access]\n't' = 'user:u'",
            f'[access] t = "user:u": expected {ACCESS_KEY.accepts}',
        ),
        (
            "[access]\n't' = ['alice']",
            f'[access] t = ["alice"]: expected {ACCESS_KEY.accepts}',
        ),
        (
            "[access]\n'a b' = []",
            "[access] 'a b' is no pattern of topics: letters, digits, '.', '_', '-', '*' for any of them and "
            "'?' for one",
        ),
    ],
)
def test_wrong_inputs_and_rules(tmp_path: Path, text: str, line: str) -> None:
    """One sentence each, with the table and the values that would be right."""
    assert refusal(tmp_path, text) == (str(tmp_path / "bruce.toml"), line)


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
