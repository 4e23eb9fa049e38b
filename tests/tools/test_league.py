"""tools/league: its sender, its count, its rows, and a short run in which bruce plays alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from dispatch.embedded import EmbeddedKafka
from tools.benches.machine import Skipped
from tools.kafka_cluster import KafkaMissing, fetch_jars
from tools.leagues import programs
from tools.leagues.arrivals import Arrivals, number_of
from tools.leagues.cases import CASES
from tools.leagues.league import PEERS, show
from tools.leagues.match import Row
from tools.leagues.peer import CONFIGURATIONS, Peer, Setting
from tools.leagues.sender import Datagrams, Sender, as_syslog, value_of

LEAGUE = Path(__file__).resolve().parents[2] / "tools/league"


def row(accepted: int, arrived: int, waiting: int = 0, discarded: int = 0) -> Row:
    """A row with these counts."""
    return Row("peer", accepted, arrived, 0, 0, waiting, discarded, 1.0, 2.0, 3.0, "a remark")


def test_uncounted_is_lost_and_not_said() -> None:
    """A message that waits or is counted by the peer is lost, and not uncounted."""
    assert (row(10, 7).lost, row(10, 7).uncounted) == (3, 3)
    assert row(10, 7, waiting=1, discarded=1).uncounted == 1
    assert row(10, 10, waiting=5).uncounted == 0


def test_a_table_names_each_peer_and_its_remark(capsys: pytest.CaptureFixture[str]) -> None:
    """With thousands apart."""
    show("a case", [row(20_000, 19_000)])
    said = capsys.readouterr().out
    assert "20,000" in said
    assert "1,000" in said
    assert "peer: a remark" in said


def test_a_value_names_its_number_twice() -> None:
    """A value that was changed, cut or made by others has none."""
    value = value_of(77, 100)
    assert (len(value), number_of(value)) == (100, 77)
    assert [number_of(other) for other in (value[:-1], b"", None, b"x" * 100, b"1" + value[1:])] == [-1] * 5


def test_the_count_finds_what_is_lost_doubled_or_late() -> None:
    """Of messages 0 to 5 one is lost, one came twice, one came too late, and one is no message."""
    with EmbeddedKafka(brokers=1, topics=[("t", 1)]) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for number in (0, 2, 1, 2, 4):
            producer.produce("t", value_of(number, 50))
        producer.produce("t", b"other")
        assert producer.flush(60) == 0
        with Arrivals(kafka.bootstrap_servers, "t") as arrivals:
            arrivals.follow(4, 30, 60)
            found = arrivals.findings(5)
    assert (found.missing, found.duplicates, found.out_of_order, found.corrupt) == (1, 1, 1, 1)


def test_a_sender_tries_each_message_until_it_is_taken(tmp_path: Path) -> None:
    """First there is no socket, then one whose owner has died: each message comes once, in order."""
    path = tmp_path / "s"
    sender = Sender(lambda: Datagrams(path, as_syslog), "topic", range(5, 1005), 50, 100_000)
    sender.start()
    time.sleep(0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(tmp_path / "dead"))
    (tmp_path / "dead").rename(path)
    time.sleep(0.05)
    path.unlink()
    assert sender.accepted == 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.settimeout(60)
        taken = [receiver.recv(1000) for _ in range(1000)]
        sender.finish(60)
    assert sender.accepted == 1000
    assert taken == [as_syslog("topic", value_of(number, 50)) for number in range(5, 1005)]


def test_a_sender_without_a_receiver_ends(tmp_path: Path) -> None:
    """A message that no receiver took is not accepted."""
    sender = Sender(lambda: Datagrams(tmp_path / "s", as_syslog), "topic", range(5), 50, 1_000)
    sender.start()
    sender.finish(0.2)
    assert not sender.is_alive()
    assert sender.accepted == 0


def test_a_peer_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it takes to have it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tools.benches.peers.shutil.which", lambda *_names, **_path: None)
    setting = Setting(tmp_path, tmp_path, "127.0.0.1:1", "one", "two")
    for name in ("rsyslog", "syslog-ng", "otelcol"):
        with pytest.raises(Skipped, match="is not"):
            PEERS[name](setting)


@pytest.mark.parametrize("kind", [programs.Rsyslog, programs.RsyslogDisk])
def test_a_configuration_is_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Peer]
) -> None:
    """No name of a template is left in it; a peer that is closed leaves no socket."""
    monkeypatch.setattr(programs, "find_program", lambda *_names: Path("/bin/true"))
    monkeypatch.setattr(programs, "check_configuration", lambda *_command: None)
    setting = Setting(tmp_path, tmp_path, "127.0.0.1:1,127.0.0.1:2", "one", "two")
    with kind(setting) as peer:
        text = peer.configuration().read_text()
    assert "@" not in text
    assert '"127.0.0.1:1", "127.0.0.1:2"' in text
    assert not peer.runtime.exists()


def test_every_peer_has_its_configuration_and_its_cases() -> None:
    """Templates are where the page says, and no case is misspelt."""
    for peer in PEERS.values():
        assert set(peer.cases) <= set(CASES)
        assert peer.remark
        template = getattr(peer, "template", None)
        assert template is None or (CONFIGURATIONS / template).is_file()


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.real_kafka
def test_bruce_alone_loses_nothing(tmp_path: Path) -> None:
    """Killed in flow, and killed in an outage, on three real brokers, with few messages."""
    try:
        fetch_jars()
    except KafkaMissing as error:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse(f"no real Kafka: {error}")
    command = [sys.executable, LEAGUE, "--only", "bruce", "--case", "kill", "away", "--count", "2000"]
    done = subprocess.run(
        [*command, "--dir", tmp_path / "league"], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "league/results.json").read_text())["rows"]
    for case in ("kill", "away"):
        (one,) = rows[case]
        assert (one["accepted"], one["arrived"], one["out_of_order"]) == (2000, 2000, 0)
