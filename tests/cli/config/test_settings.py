"""Each table and key of bruce.toml, and the line about each wrong one."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from cli.config.settings import ACCESS_KEY, TABLES, TOPIC_KEYS
from cli.terminal.errors import ConfigError
from router.limits import Rate
from tests.cli.config.test_config import KAFKA, load, refusal


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
            "the tables are ingest, spool, dispatch, status, witness, log, access, input, kafka, topics",
        ),
        (
            "directory = '/x'",
            "outside of a table there is no key 'directory'; "
            "the tables are ingest, spool, dispatch, status, witness, log, access, input, kafka, topics",
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
    ("text", "line"),
    [
        ("[input]\ntcp = 1", "each input is a table of its own: write [[input]], in two brackets"),
        ("[[input]]", "[[input]] no. 1: expected one of datagram, stream, tcp and kafka"),
        ("[[input]]\nmode = '0600'", "[[input]] no. 1: expected one of datagram, stream, tcp and kafka"),
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
