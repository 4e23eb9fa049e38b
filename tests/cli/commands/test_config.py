"""Files of Bruce and Dory as a bruce.toml: which settings are converted, and which are noted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.commands.config import Conversion
from cli.config.config import load_config
from cli.terminal.errors import ConfigError
from tests.cli.program import run

DORY = """<?xml version="1.0" encoding="US-ASCII"?>
<doryConfig>
  <batching>
    <namedConfigs>
      <config name="calm"><time value="800"/><messages value="4k"/><bytes value="256k"/></config>
    </namedConfigs>
    <produceRequestDataLimit value="1024k"/>
    <messageMaxBytes value="900000"/>
    <combinedTopics enable="true" config="calm"/>
    <defaultTopic action="combinedTopics" config=""/>
    <topicConfigs><topic name="fast" action="perTopic" config="calm"/></topicConfigs>
  </batching>
  <compression>
    <namedConfigs>
      <config name="quick" type="snappy" minSize="128"/>
      <config name="tight" type="gzip" level="3"/>
    </namedConfigs>
    <sizeThresholdPercent value="75"/>
    <defaultTopic config="quick"/>
    <topicConfigs><topic name="archive" config="tight"/></topicConfigs>
  </compression>
  <topicRateLimiting>
    <namedConfigs>
      <config name="none" interval="1" maxCount="0"/>
      <config name="all" interval="1" maxCount="unlimited"/>
      <config name="some" interval="10000" maxCount="4k"/>
    </namedConfigs>
    <defaultTopic config="all"/>
    <topicConfigs>
      <topic name="loud" config="some"/><topic name="shut" config="none"/><topic name="free" config="all"/>
    </topicConfigs>
  </topicRateLimiting>
  <inputSources>
    <unixDatagram enable="true"><path value="/var/run/dory.sock"/><mode value="0222"/></unixDatagram>
    <unixStream enable="true"><path value="/var/run/dory.stream"/><mode value="0220"/></unixStream>
    <tcp enable="true"><port value="3000"/></tcp>
  </inputSources>
  <inputConfig><maxBuffer value="128m"/><maxStreamMsgSize value="16m"/></inputConfig>
  <msgDelivery>
    <shutdownMaxDelay value="30500"/>
    <metadataRefreshInterval value="15"/>
    <kafkaSocketTimeout value="60"/>
    <maxFailedDeliveryAttempts value="5"/>
  </msgDelivery>
  <httpInterface>
    <port value="9091"/><loopbackOnly value="false"/><badMsgPrefixSize value="64"/>
  </httpInterface>
  <discardLogging enable="true">
    <path value="/var/log/dory/discards"/><maxFileSize value="1k"/>
  </discardLogging>
  <kafkaConfig><clientId value="web"/><replicationTimeout value="10000"/></kafkaConfig>
  <initialBrokers><broker host="a" port="9093"/><broker host="b"/></initialBrokers>
</doryConfig>
"""
BRUCE = """<bruceConfig>
  <initialBrokers><broker host="a" port="9092"/></initialBrokers>
</bruceConfig>
"""


@pytest.fixture
def dory(tmp_path: Path) -> Path:
    """A file with every setting that has a counterpart, and some that have none."""
    path = tmp_path / "dory.xml"
    path.write_text(DORY)
    return path


def test_what_is_taken_over(dory: Path) -> None:
    """Every setting with the same meaning in bruce, in bruce's units."""
    assert Conversion(dory).tables == {
        "kafka": {
            "message.max.bytes": "900000",
            "linger.ms": "800",
            "batch.num.messages": "4096",
            "batch.size": "262144",
            "compression.type": "snappy",
            "topic.metadata.refresh.interval.ms": "900000",
            "socket.timeout.ms": "60000",
            "client.id": "web",
            "request.timeout.ms": "10000",
            "bootstrap.servers": "a:9093,b:9092",
        },
        "topics.archive": {"compression.type": "gzip", "compression.level": "3"},
        "topics.loud": {"rate": 409, "rate_excess": "discard"},
        "topics.shut": {"rate": 1, "rate_excess": "discard"},
        "ingest": {
            "datagram_socket": "/var/run/dory.sock",
            "socket_mode": "0222",
            "tcp_port": 3000,
            "max_stream_message_bytes": 16 << 20,
        },
        "input.1": {"stream": "/var/run/dory.stream", "mode": "0220"},
        "dispatch": {
            "partitioner": "any",
            "drain_seconds": 31,
            "discard_file": "/var/log/dory/discards",
            "discard_file_bytes": 65536,
        },
        "status": {"port": 9091},
    }


def test_what_is_noted(dory: Path) -> None:
    """A sentence for each setting without an exact counterpart; nothing is dropped silently."""
    noted = {note.partition(">")[0].removeprefix("<") for note in Conversion(dory).notes}
    assert noted == {
        "batching/produceRequestDataLimit",
        "batching/combinedTopics",
        "batching/topicConfigs",
        "compression, quick",
        "compression/sizeThresholdPercent",
        "topicRateLimiting, shut",
        "inputConfig/maxBuffer",
        "msgDelivery/maxFailedDeliveryAttempts",
        "httpInterface/loopbackOnly",
        "httpInterface/badMsgPrefixSize",
        "discardLogging",
        "initialBrokers",
    }


def test_bruce_takes_it(dory: Path, tmp_path: Path) -> None:
    """The output is a bruce.toml that the daemon would start with, including the notes."""
    done = run("config", "convert", dory)
    assert (done.returncode, done.stderr) == (0, "")
    made = tmp_path / "bruce.toml"
    made.write_text(done.stdout)
    config = load_config(made, environ={})
    assert config.dispatch.kafka["bootstrap.servers"] == "a:9093,b:9092"
    assert config.rates["loud"].messages == 409
    checked = run("config", "check", "--config", made)
    assert (checked.returncode, checked.stdout) == (0, f"fine: {made}\n")
    document = json.loads(run("config", "convert", "--json", dory).stdout)
    assert document["version"] == 1
    assert document["tables"]["ingest"]["datagram_socket"] == "/var/run/dory.sock"
    assert all(note in done.stdout.replace("\n#  ", "") for note in document["notes"])


def test_bruce_1_0(tmp_path: Path) -> None:
    """Bruce 1.0 takes its settings as flags, which no file has: the conversion notes that."""
    path = tmp_path / "bruce.xml"
    path.write_text(BRUCE)
    found = Conversion(path)
    assert found.tables == {"dispatch": {"partitioner": "any"}, "kafka": {"bootstrap.servers": "a:9092"}}
    assert "--receive_socket_name is [ingest] datagram_socket" in found.notes[0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dear reader", "is not XML: "),
        ("<other/>", "is of neither Bruce nor Dory"),
        ("<doryConfig/>", "names no broker in <initialBrokers>"),
        ("<doryConfig><new/></doryConfig>", "neither Bruce nor Dory knows an element <new>"),
        (
            "<doryConfig><initialBrokers><broker/></initialBrokers></doryConfig>",
            "<broker> has no attribute host",
        ),
        (
            '<doryConfig><batching><messageMaxBytes value="1g"/></batching></doryConfig>',
            '<messageMaxBytes value="1g">: expected a number',
        ),
        (
            '<doryConfig><compression><defaultTopic config="x"/></compression></doryConfig>',
            "<compression> has no configuration named 'x'",
        ),
        ('<?xml version="1.0" encoding="nonsense"?><doryConfig/>', "is not XML: "),
    ],
)
def test_what_cannot_be_converted(tmp_path: Path, text: str, sentence: str) -> None:
    """One sentence with the file, and exit code 2."""
    path = tmp_path / "old.xml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"old\.xml"):
        Conversion(path)
    done = run("config", "convert", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{path}: {sentence}")
    assert done.stderr.count("\n") == 1


def test_show(tmp_path: Path) -> None:
    """Each setting is shown with its origin; variables override; a secret is not shown."""
    path = tmp_path / "bruce.toml"
    path.write_text(
        '[spool]\nmax_bytes = "1GiB"\n[kafka]\n"bootstrap.servers" = "a:1"\n"sasl.password" = "xyzzy"\n'
        '[topics."a.b"]\nquota = "20%"\n[ingest]\nsocket_mode = "0660"\n'
    )
    variable = {"BRUCE_SPOOL_MAX_BYTES": "2GiB"}
    done = run("config", "show", "--config", path, environ=variable)
    assert done.returncode == 0
    assert "xyzzy" not in done.stdout
    assert done.stdout.startswith(f"# from {path}\n# from BRUCE_SPOOL_MAX_BYTES\n")
    made = tmp_path / "again.toml"
    made.write_text(done.stdout)
    assert load_config(made, environ={}).spool.max_bytes == 2 << 30
    document = json.loads(run("config", "show", "--json", "--config", path, environ=variable).stdout)
    assert {"table": "ingest", "key": "socket_mode", "value": "0660", "where": str(path)} in document[
        "settings"
    ]
    assert {"table": "topics.a.b", "key": "quota", "value": "20%", "where": str(path)} in document["settings"]
    assert {
        "table": "kafka",
        "key": "sasl.password",
        "value": "(hidden)",
        "where": str(path),
    } in document["settings"]


def test_check(tmp_path: Path) -> None:
    """Settings that the daemon would refuse are refused: by us, by librdkafka, for a missing partitioner."""
    path = tmp_path / "bruce.toml"
    kafka = '[kafka]\n"bootstrap.servers" = "a:1"\n'
    cases = {
        '[spool]\nmax_byte = "1GiB"\n': "max_byte",
        f'{kafka}"linger.msx" = "5"\n': "linger.msx",
        f'{kafka}[topics."t"]\npartitioner = "nothing:there"\n': "nothing:there",
    }
    for text, word in cases.items():
        path.write_text(text)
        done = run("config", "check", "--config", path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert word in done.stderr
    first_try = run("config", "check", "--json", environ={"BRUCE_CONFIG": ""})
    assert json.loads(first_try.stdout)["version"] == 1
