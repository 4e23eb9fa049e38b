"""librdkafka's words in ours; tests/real_kafka/test_secured.py has the brokers that make it say them."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from dispatch import diagnosis
from dispatch.diagnosis import KafkaError, explain_endings, explain_errors, explain_refusal


def broker(
    state: str, *, connects: int, disconnects: int, rx: int, source: str = "learned"
) -> dict[str, Any]:
    """One of librdkafka's statistics."""
    counts = {"connects": connects, "disconnects": disconnects, "rx": rx}
    return {"nodename": f"{source}:9092", "state": state, "source": source, **counts}


@pytest.mark.parametrize(
    ("protocol", "counts", "words"),
    [
        (
            "plaintext",
            {"connects": 4, "disconnects": 4, "rx": 0},
            "learned:9092 ends every connection before",
        ),
        ("sasl_ssl", {"connects": 4, "disconnects": 4, "rx": 0}, "learned:9092 ends every connection before"),
        ("ssl", {"connects": 3, "disconnects": 2, "rx": 3}, "learned:9092 answers once and ends every"),
        ("sasl_ssl", {"connects": 3, "disconnects": 2, "rx": 3}, ""),
        ("plaintext", {"connects": 1, "disconnects": 0, "rx": 0}, ""),
        ("plaintext", {"connects": 2, "disconnects": 1, "rx": 900}, ""),
    ],
)
def test_brokers_that_end_each_connection(protocol: str, counts: dict[str, int], words: str) -> None:
    """A broker that ends connections without an answer, or behind the first, is named; no other is."""
    statistics = {"brokers": {"1": broker("TRY_CONNECT", **counts)}}
    found = explain_endings(statistics, protocol)
    assert found.startswith(words)
    assert bool(found) == bool(words)
    assert not found or f"is {protocol.upper()}" in found


def test_one_broker_that_is_well_is_enough() -> None:
    """The others' state says that they are away; librdkafka's logical brokers are none."""
    ended = broker("TRY_CONNECT", connects=1, disconnects=1, rx=0)
    well = broker("UP", connects=1, disconnects=0, rx=50)
    assert explain_endings({"brokers": {"1": ended, "2": well}}, "plaintext") == ""
    logical = broker("TRY_CONNECT", connects=1, disconnects=1, rx=0, source="logical")
    assert explain_endings({"brokers": {"1": logical}}, "plaintext") == ""
    assert explain_endings({}, "plaintext") == ""


def test_brokers_that_hang_want_no_user() -> None:
    """Connections that librdkafka itself ends, after requests that timed out, are not ended by a listener.

    The counts are those of real brokers that were frozen after their first replies, and 18 s later.
    """
    counts = [(2, 1, 2, 1), (3, 2, 5, 2), (1, 0, 1, 0)]
    brokers = [
        broker("APIVERSION_QUERY", connects=c, disconnects=d, rx=rx) | {"req_timeouts": timeouts}
        for c, d, rx, timeouts in counts
    ]
    assert explain_endings({"brokers": dict(enumerate(brokers))}, "plaintext") == ""


def test_errors_that_nobody_knows() -> None:
    """An unknown error is shown in librdkafka's words, as is its refusal of properties."""
    errors = [KafkaError(1.0, "_FAIL", "k1:9092/1: something new (after 3ms in state CONNECT)")]
    assert explain_errors(errors).startswith("no broker can be reached (k1:9092: something new)")
    assert explain_errors([KafkaError(1.0, "_ALL_BROKERS_DOWN", "1/1 brokers are down")]) == ""
    assert explain_refusal("xyz") == "librdkafka refuses the Kafka properties: xyz"


@pytest.mark.parametrize(("code", "taken"), [(0, 1), (10, 0), (62, 0), (4711, 0)])
def test_what_openssl_says_is_never_changed(code: int, taken: int) -> None:
    """OpenSSL's verdict stays: good stays good, anything else is refused, as is an error in the callback."""
    error = ctypes.pointer(ctypes.c_int(code))
    assert diagnosis._verify_callback(None, b"k7:9093", 1, error, 0, None, 0, None, 0, None) == taken
    assert bool(diagnosis.verify_error_of("ssl://k7:9093/bootstrap: certificate verify failed")) == (
        not taken
    )
    diagnosis._refused.clear()
