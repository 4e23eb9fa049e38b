"""Why a broker's certificate was refused: OpenSSL says it to a callback, and librdkafka tells nobody.

librdkafka's own words are the same for every cause ("certificate verify failed"). The callback changes no
verdict: what OpenSSL refuses stays refused, and an error in here refuses as well (ctypes then returns 0).

It comes from librdkafka's threads, once for each certificate of a chain at each handshake.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int32, c_size_t, c_void_p
from typing import Any

from dispatch.librdkafka import Library

_EXPIRED, _NOT_YET, _STRANGE, _ELSEWHERE, _REVOKED = (
    "certificate has expired",
    "certificate is not valid yet",
    "certificate is of no known authority",
    "certificate is for another name",
    "certificate is revoked",
)
_WORDS = {
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
_PROTOTYPE = ctypes.CFUNCTYPE(
    *(c_int, c_void_p, c_char_p, c_int32, POINTER(c_int), c_int),
    *(c_void_p, c_size_t, c_void_p, c_size_t, c_void_p),
)
_refused: dict[str, str] = {}
"""By host:port, why its certificate was refused last. Of this process: its clients have one cluster each, and
a function that librdkafka's threads may call must outlive every client."""


def _note(
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
    _refused[broker.decode("utf-8", "replace")] = _WORDS.get(code, f"certificate has OpenSSL's error {code}")
    return 0


_callback = _PROTOTYPE(_note)


def listen(library: Library, conf: int) -> None:
    """Have verdicts noted of whoever is made from this configuration."""
    library.conf_set_ssl_cert_verify_cb(conf, ctypes.cast(_callback, c_void_p))


def verdict_of(text: str) -> str:
    """The verdict about the broker that an error's text names; empty when there is none."""
    return next((words for broker, words in _refused.items() if broker in text), "")
