"""One sentence says why nothing can be sent; and it goes once nothing is wrong."""

from __future__ import annotations

import pytest

from dispatch.diagnosis import KafkaError
from dispatch.errors import Code
from router.cluster.trouble import (
    FRESH_S,
    MOST_NAMES,
    Cause,
    Trouble,
    explain_connections,
    explain_topics,
)

REFUSED = KafkaError(
    100.0,
    "_TRANSPORT",
    "k1:9092/bootstrap: Connect to ipv4#10.0.0.1:9092 failed: refused"
    " (after 0ms in state CONNECT, 1 identical error(s) suppressed)",
)
NO_NAME = KafkaError(100.0, "_RESOLVE", "k2:9092/bootstrap: Failed to resolve (after 3ms in state CONNECT)")
PASSWORD = KafkaError(
    100.0, "_AUTHENTICATION", "sasl_plaintext://k1:9093/1: SASL failed (after 305ms in state AUTH_REQ)"
)
TLS = KafkaError(
    100.0, "_SSL", "ssl://k1:9093/1: certificate verify failed (after 5ms in state SSL_HANDSHAKE)"
)
NO_TLS = KafkaError(
    100.0,
    "_TRANSPORT",
    "ssl://k1:9093/1: Disconnected (after 5ms in state SSL_HANDSHAKE, 1 identical error(s) suppressed)",
)
ALL_DOWN = KafkaError(101.0, "_ALL_BROKERS_DOWN", "2/2 brokers are down")
SERVERS = "correct bootstrap.servers in [kafka]"


@pytest.mark.parametrize(
    ("errors", "where", "what_to_do"),
    [
        (
            [REFUSED, ALL_DOWN],
            "no broker can be reached (k1:9092: Connect to ipv4#10.0.0.1:9092 failed: refused)",
            f"start Kafka, or {SERVERS}",
        ),
        (
            [NO_NAME, REFUSED, ALL_DOWN],
            "a broker's name does not resolve (k2:9092: Failed to resolve)",
            f"{SERVERS}, or the DNS",
        ),
        (
            [REFUSED, TLS, NO_NAME],
            "the TLS handshake with Kafka fails (k1:9093: certificate verify failed)",
            "correct ssl.* in [kafka] and restart bruce",
        ),
        (
            [REFUSED, NO_TLS, ALL_DOWN],
            "the listener at k1:9093 ends the TLS handshake, as one without TLS does",
            "set security.protocol to PLAINTEXT or SASL_PLAINTEXT, or correct the port in bootstrap.servers "
            "in [kafka] and restart bruce",
        ),
        (
            [PASSWORD, TLS, REFUSED],
            "Kafka refuses who we are (k1:9093: SASL failed)",
            "correct sasl.username, sasl.password or sasl.mechanism in [kafka] and restart bruce, "
            "or mend the user on the brokers",
        ),
    ],
)
def test_nobody_is_connected(errors: list[KafkaError], where: str, what_to_do: str) -> None:
    """Faults that only people can mend come first, with the address and what to do."""
    assert explain_connections(["DOWN", "TRY_CONNECT"], errors, 50.0) == f"{where}: {what_to_do}"


@pytest.mark.parametrize(("states", "since"), [(["UP", "DOWN"], 0.0), ([], 0.0), (["DOWN", "INIT"], 100.5)])
def test_nothing_is_said(states: list[str], since: float) -> None:
    """With one broker connected, before anything is known, or when the errors are old."""
    assert explain_connections(states, [REFUSED, ALL_DOWN], since) == ""


def test_topics() -> None:
    """Topics that people must mend come first; many names are cut short."""
    assert explain_topics({}) == ""
    absent = explain_topics({b"a": Code.UNKNOWN_TOPIC_OR_PART}, 60)
    assert absent.endswith("create it, unless Kafka does by itself; its messages are held for up to 60 s")
    found = explain_topics({b"a": Code.UNKNOWN_TOPIC_OR_PART, b"s": Code.TOPIC_AUTHORIZATION_FAILED})
    assert found == "no right to write to s: grant it to bruce's user; its messages wait"
    many = explain_topics({b"t%d" % n: int(Code.UNKNOWN_TOPIC_OR_PART) for n in range(MOST_NAMES + 3)})
    assert "t0, t1, t2, t3, t4 and 3 more yet: create it" in many
    assert "policy_violation" in explain_topics({b"\xff": int(Code.POLICY_VIOLATION)})


def test_a_topic_commands_no_terminal() -> None:
    """`brucectl status` prints the sentence: one line, without control characters, and the name is cut."""
    for name, shown in (
        (b"a\x1b[31m\nb", r"topic a\x1b[31m\nb yet"),
        (b"t" * 32_767, f"topic {'t' * 59}… yet"),
    ):
        assert shown in explain_topics({name: Code.UNKNOWN_TOPIC_OR_PART})


class Client:
    """The part of a client that Trouble reads."""

    def __init__(self) -> None:
        self.last_errors = [PASSWORD]
        self.states = ["DOWN"]
        self.ended = ""

    def explain_endings(self) -> str:
        return self.ended

    def statistics(self) -> dict[str, object]:
        return {
            "brokers": {
                str(n): {"state": state, "nodename": f"k{n}:9092"} for n, state in enumerate(self.states)
            }
        }


class Metadata:
    """The part of the metadata that Trouble reads."""

    error, since = "", 0.0

    def failing_s(self) -> float:
        return self.since


def test_it_passes() -> None:
    """A sentence lasts until its cause has gone: connected again, answered again, delivered again."""
    client, metadata, now = Client(), Metadata(), [101.0]
    trouble = Trouble(client, metadata, clock=lambda: now[0])  # type: ignore[arg-type]
    assert trouble.sentence().startswith("Kafka refuses who we are")
    client.states = ["UP"]
    assert trouble.sentence() == ""
    now[0] += 60
    assert trouble.sentence() == ""
    client.states = ["DOWN"]
    assert trouble.sentence() == ""
    client.last_errors = [REFUSED._replace(at=now[0])]
    assert trouble.sentence().startswith("no broker can be reached")
    client.states = ["UP"]
    metadata.error, metadata.since = "timed out", 60.0
    assert trouble.sentence() == "Kafka is connected and does not answer (timed out): look at its brokers"
    client.states, client.last_errors = ["CONNECT", "TRY_CONNECT"], []
    assert "no broker can be reached (nothing comes back from k0:9092, k1:9092)" in trouble.sentence()
    metadata.error = ""
    trouble.note_finished("Fatal error: Broker: Cluster authorization failed: no PID")
    assert "no right to write (Broker: Cluster authorization failed: no PID)" in trouble.sentence()
    trouble.note_delivered()
    assert trouble.sentence() == ""
    trouble.note_finished("Fatal error: out of order")
    assert trouble.sentence().startswith("the producer is finished (out of order)")
    now[0] += FRESH_S
    assert trouble.sentence() == ""
    trouble.note_denied({b"t": int(Code.TOPIC_AUTHORIZATION_FAILED)})
    trouble.complain("discards", "the disk is full")
    assert trouble.sentence() == "the disk is full"
    trouble.take_back("discards")
    assert trouble.sentence().startswith("no right to write to t: ")


def test_what_a_sentence_is_about() -> None:
    """All of Kafka, a topic that may still come, or something else."""
    client, metadata = Client(), Metadata()
    trouble = Trouble(client, metadata, grace_s=60, clock=lambda: 101.0)  # type: ignore[arg-type]
    assert (trouble.sentence()[:5], trouble.cause) == ("Kafka", Cause.KAFKA)
    client.states = ["UP"]
    assert (trouble.sentence(), trouble.cause) == ("", Cause.OTHER)
    trouble.note_denied({b"t": int(Code.UNKNOWN_TOPIC_OR_PART), b"u": int(Code.LEADER_NOT_AVAILABLE)})
    assert trouble.sentence()
    assert trouble.cause is Cause.ABSENT
    trouble.note_failing({b"s": int(Code.TOPIC_AUTHORIZATION_FAILED)})
    assert trouble.sentence().startswith("no right")
    assert trouble.cause is Cause.OTHER


def test_a_topic_that_does_not_come() -> None:
    """It may come within its grace time; from then on it is a trouble, whatever else is still awaited."""
    client, metadata, now = Client(), Metadata(), [1000.0]
    client.states = ["UP"]
    trouble = Trouble(client, metadata, grace_s=60, clock=lambda: now[0])  # type: ignore[arg-type]
    denied = {b"leaderless": int(Code.LEADER_NOT_AVAILABLE)}
    for seconds, cause in ((0, Cause.ABSENT), (60, Cause.ABSENT), (10, Cause.OTHER)):
        now[0] += seconds
        trouble.note_denied(denied)
        assert "leaderless" in trouble.sentence()
        assert trouble.cause is cause
    trouble.note_denied({**denied, b"new": int(Code.UNKNOWN_TOPIC_OR_PART)})
    assert ("leaderless" in trouble.sentence(), "new" in trouble.sentence()) == (True, False)
    assert trouble.cause is Cause.OTHER
    trouble.note_denied({b"new": int(Code.UNKNOWN_TOPIC_OR_PART)})
    assert ("new" in trouble.sentence(), trouble.cause) == (True, Cause.ABSENT)


def test_connections_that_end_without_a_word() -> None:
    """Their sentence stays while librdkafka counts again, behind causes that have words, until a delivery."""
    client, metadata, now = Client(), Metadata(), [101.0]
    trouble = Trouble(client, metadata, clock=lambda: now[0])  # type: ignore[arg-type]
    client.ended = "k0 ends every connection"
    assert trouble.sentence().startswith("Kafka refuses who we are")
    client.last_errors = [ALL_DOWN]
    assert trouble.sentence() == "k0 ends every connection"
    client.ended, client.states = "", ["UP"]
    assert trouble.sentence() == ""
    metadata.error, metadata.since = "transport failure", 60.0
    assert trouble.sentence() == "k0 ends every connection"
    trouble.note_delivered()
    assert trouble.sentence().startswith("Kafka is connected and does not answer")
    # A cluster that has taken messages is never called one that wants a user.
    client.ended = "k0 ends every connection"
    assert trouble.sentence().startswith("Kafka is connected and does not answer")
