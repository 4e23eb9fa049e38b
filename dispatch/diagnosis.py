"""The trouble with a connection to Kafka, and what to do: librdkafka's words in ours, in one table.

An error's name and text are looked up; statistics show connections that end without an error. Each sentence
says what, where and what to do.

Why a broker's certificate was refused, OpenSSL says to a callback alone: librdkafka's own words are the same
for every cause ("certificate verify failed"). The callback (`catch_verify_errors`) changes no result: what
OpenSSL refuses stays refused, and an error in here refuses as well (ctypes then returns 0). It is called by
librdkafka's threads, once for each certificate of a chain at each handshake.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Mapping
from ctypes import POINTER, c_char_p, c_int, c_int32, c_size_t, c_void_p
from typing import Any, NamedTuple

from dispatch.librdkafka import Library


class KafkaError(NamedTuple):
    """An error that concerns no single message."""

    at: float
    """Seconds since the epoch."""
    name: str
    """Such as `_ALL_BROKERS_DOWN`."""
    text: str


ALL_DOWN = "_ALL_BROKERS_DOWN"
"""Says nothing that others do not say better."""
_KAFKA = "in [kafka] and restart bruce"
_TABLE = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        # Our user. An empty list of mechanisms: it is a listener without users.
        (
            r"^_AUTHENTICATION .*supported mechanisms: *(\(after .*)?$",
            "the listener at {where} knows no passwords: set security.protocol to PLAINTEXT or SSL, or "
            f"correct the port in bootstrap.servers {_KAFKA}",
        ),
        (
            r"^_AUTHENTICATION .*supported mechanisms: (?P<known>[A-Z]\S+)",
            "Kafka at {where} does not take this sasl.mechanism: set it to one of {known} " + _KAFKA,
        ),
        (
            r"^_AUTHENTICATION ",
            "Kafka refuses who we are ({plain}): correct sasl.username, sasl.password or sasl.mechanism "
            f"{_KAFKA}, or mend the user on the brokers",
        ),
        # The broker's certificate: see _VERIFY_ERRORS.
        (
            "certificate has expired",
            "the certificate of Kafka at {where}, or of its authority, has expired: renew it on the broker",
        ),
        (
            "certificate is not valid yet",
            "the certificate of Kafka at {where} is not valid yet: look at the clocks of both hosts",
        ),
        (
            "certificate is of no known authority",
            "the certificate of Kafka at {where} is of an authority that bruce does not know: set "
            f"ssl.ca.location to that authority's certificate {_KAFKA}",
        ),
        (
            "certificate is for another name",
            "the certificate of Kafka at {where} is for another name: use the name that it has in "
            f"bootstrap.servers {_KAFKA}, or give the broker one with this name",
        ),
        # Ours.
        (
            r"SSL alert number (4[1-9]|116)|client SSL authentication might be required",
            "Kafka at {where} wants a certificate of ours that it trusts: correct ssl.certificate.location "
            f"and ssl.key.location {_KAFKA}, or have the broker trust its authority",
        ),
        (
            r"PLAINTEXT broker listener|Disconnected.* in state SSL_HANDSHAKE|wrong version number",
            "the listener at {where} ends the TLS handshake, as one without TLS does: set security.protocol "
            f"to PLAINTEXT or SASL_PLAINTEXT, or correct the port in bootstrap.servers {_KAFKA}",
        ),
        (
            r"^_SSL | in state SSL_HANDSHAKE",
            f"the TLS handshake with Kafka fails ({{plain}}): correct ssl.* {_KAFKA}",
        ),
        (
            r"^_RESOLVE ",
            "a broker's name does not resolve ({plain}): correct bootstrap.servers in [kafka], or the DNS",
        ),
        (
            "",
            "no broker can be reached ({plain}): start Kafka, or correct bootstrap.servers in [kafka]",
        ),
    )
)
"""The worst first: what only people mend goes before what may pass."""
_UNANSWERED = (
    "{where} ends every connection before it answers, as a TLS listener does to plaintext: security.protocol "
    "in [kafka] is {protocol}; set it to what is spoken there and restart bruce, or look at who listens there"
)
_UNKNOWN_USER = (
    "{where} answers once and ends every connection, as a listener does that wants a user: security.protocol "
    f"in [kafka] is {{protocol}}; set it to SASL_PLAINTEXT or SASL_SSL, and sasl.* {_KAFKA}"
)
_REFUSED = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"key values mismatch", "the key in ssl.key.location is not that of ssl.certificate.location"),
        (r"^ssl\.key\S* failed: .*PEM lib", "{0} has no key, or ssl.key.password does not open it"),
        (
            r"^(ssl\.\S+\.location|ssl\.\S+) failed: ",
            "the file that {0} names cannot be read, or is not what it should be",
        ),
    )
)
"""librdkafka's words about properties, when it is asked for a producer."""
_BROKER = re.compile(r"^(?:\w+://)?(?P<broker>\S+?)/(?:bootstrap|\d+): ")
_STATE = re.compile(r"\s*\(after \d+ms in state .*\)$")


def explain_errors(errors: Iterable[KafkaError]) -> str:
    """The sentence for the worst of them, the newest of its kind; empty for none."""
    known = [error for error in errors if error.name != ALL_DOWN]
    for pattern, words in _TABLE:
        for error in reversed(known):
            if found := pattern.search(f"{error.name} {error.text}"):
                broker = _BROKER.match(error.text)
                where = broker["broker"] if broker else "a broker"
                return words.format(where=where, plain=plain(error.text), **found.groupdict())
    return ""


def explain_endings(statistics: Mapping[str, Any], protocol: str) -> str:
    """The sentence for brokers that end each connection without a word; empty when none does, or one is well.

    `statistics`: librdkafka's; `protocol`: our security.protocol.
    """
    brokers = [b for b in statistics.get("brokers", {}).values() if b.get("source") != "logical"]
    # A broker that hangs lets requests time out, and librdkafka itself then ends the connection.
    ended = [b for b in brokers if b.get("disconnects") and b["rx"] <= b["connects"]]
    ended = [b for b in ended if not b.get("req_timeouts")]
    if not ended or any(b["state"] == "UP" and b not in ended and b["rx"] > b["connects"] for b in brokers):
        return ""
    where, shown = ended[0]["nodename"], protocol.upper()
    if not any(b["rx"] for b in ended):
        return _UNANSWERED.format(where=where, protocol=shown)
    return "" if shown.startswith("SASL") else _UNKNOWN_USER.format(where=where, protocol=shown)


def explain_refusal(said: str) -> str:
    """Why librdkafka makes no producer of these properties; never a value of one."""
    for pattern, words in _REFUSED:
        if found := pattern.search(said):
            name = found.group().partition(" ")[0]
            return f"no producer can be made: {words.format(name)}: correct it {_KAFKA}"
    return f"librdkafka refuses the Kafka properties: {said}"


def plain(text: str) -> str:
    """librdkafka's words without its own state; the broker's name in front stays."""
    found = _BROKER.match(text)
    where = f"{found['broker']}: " if found else ""
    return where + _STATE.sub("", _BROKER.sub("", text)).strip()


_EXPIRED, _NOT_YET, _STRANGE, _ELSEWHERE, _REVOKED = (
    "certificate has expired",
    "certificate is not valid yet",
    "certificate is of no known authority",
    "certificate is for another name",
    "certificate is revoked",
)
_VERIFY_ERRORS = {
    # The numbers of X509_V_ERR_..., which OpenSSL's x509_vfy.h fixes.
    2: _STRANGE,
    9: _NOT_YET,
    10: _EXPIRED,
    18: _STRANGE,
    19: _STRANGE,
    20: _STRANGE,
    21: _STRANGE,
    23: _REVOKED,
    62: _ELSEWHERE,
    64: _ELSEWHERE,
}
_VERIFY_CALLBACK = ctypes.CFUNCTYPE(
    *(c_int, c_void_p, c_char_p, c_int32, POINTER(c_int), c_int),
    *(c_void_p, c_size_t, c_void_p, c_size_t, c_void_p),
)
_refused: dict[str, str] = {}
"""By host:port, why its certificate was refused last. Of this process: its clients have one cluster each, and
a function that librdkafka's threads may call must outlive every client."""


def _note_verify_error(
    _handle: int,
    broker: bytes,
    _broker_id: int,
    error: Any,
    _depth: int,
    _certificate: int,
    _size: int,
    _said: int,
    _said_size: int,
    _opaque: int,
) -> int:
    code = int(error[0])
    if code == 0:
        return 1
    _refused[broker.decode("utf-8", "replace")] = _VERIFY_ERRORS.get(
        code, f"certificate has OpenSSL's error {code}"
    )
    return 0


_verify_callback = _VERIFY_CALLBACK(_note_verify_error)


def catch_verify_errors(library: Library, conf: int) -> None:
    """Have TLS verify errors noted of each client that is made from this configuration (rd_kafka_conf_t)."""
    library.conf_set_ssl_cert_verify_cb(conf, ctypes.cast(_verify_callback, c_void_p))


def verify_error_of(text: str) -> str:
    """Why the certificate of the broker that an error's text names was refused; empty when it was not."""
    return next((words for broker, words in _refused.items() if broker in text), "")
