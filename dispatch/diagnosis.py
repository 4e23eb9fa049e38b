"""What is wrong with a connection to Kafka, and what to do: librdkafka's words in ours, in one table.

An error's name and text are looked up; statistics tell of connections that end without an error. Each
sentence says what, where and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


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
        # Who we are. An empty list of mechanisms: it is a listener without users.
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
        # The broker's certificate, in the words of dispatch.verdicts.
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
            "what {0} names cannot be read, or is not what it should be",
        ),
    )
)
"""What librdkafka says of properties when a producer is made."""
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
    ended = [b for b in brokers if b.get("disconnects") and b["rx"] <= b["connects"]]
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
