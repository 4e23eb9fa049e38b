"""Access to the status page: its address, socket, token and certificate, and the host names that it accepts.

Without a token the page answers only to names of this host. The libraries of a server are loaded when there
is a client: a host that has no page open and no scraper pays for a socket alone.

    StatusError
      BadAccess       the token file, the certificate or the key cannot be used
      NothingToTell   the spool cannot be looked at now

Each message is one sentence for the terminal; `cli.terminal.errors` says which exit code goes with it.
"""

from __future__ import annotations

import base64
import errno
import hmac
import ipaddress
import logging
import os
import select
import socket
import ssl
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_LEAST_CHARACTERS = 16
_MOST_BYTES = 4096
"""Of a token file."""
_LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}
log = logging.getLogger("bruce.status")
_BACKLOG = 1024
"""Connections that wait until they are accepted."""
_AGAIN_S = 5.0
"""Until a port that is taken is tried again."""
BEAT_S = 5.0
"""Between two beats of a status worker that has nothing to do."""


class StatusError(Exception):
    """Anything that the status page refuses by itself."""


class BadAccess(StatusError):
    """A token file, a certificate or a key that cannot be used. `key` is that of [status] which names it."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"[status] {key} {reason}")
        self.key = key


class NothingToTell(StatusError):
    """The spool cannot be looked at now; the sentence says why."""


@dataclass(frozen=True, slots=True)
class StatusOptions:
    """The status page, metrics and the API. The `[status]` table of bruce.toml."""

    port: int = 9097
    """The port of the page, /metrics and /api/v1/; 0: they are not served. Danger: without a token_file every
    user of this host sees counts, topics, and the first bytes of discarded messages."""
    address: str = "127.0.0.1"
    """The address to listen on: an IP address of this host, or 0.0.0.0 or :: for all. Other hosts can reach
    any address but loopback, so all others need a token_file."""
    token_file: Path | None = None
    """A file with the token that a request must show: `Authorization: Bearer TOKEN`, or in a browser as
    the password, with any user name. At least 16 characters, and nothing others may read. Danger: without
    tls_certificate it crosses the network as it is."""
    tls_certificate: Path | None = None
    """A file in PEM with the certificate to show, and those between it and its root: the page is then at
    https. It is read when bruce starts, and at a reload of the table."""
    tls_key: Path | None = None
    """The certificate's private key, in PEM; by default it is read from tls_certificate."""

    @property
    def is_local(self) -> bool:
        """Whether only this host can reach it."""
        return ipaddress.ip_address(self.address).is_loopback


@dataclass(frozen=True, slots=True)
class Access:
    """The token that a request must show, and the certificate that it is shown."""

    token: str | None
    tls: ssl.SSLContext | None
    names: frozenset[str]
    """Names of this host that a request may use when there is no token.

    A page of some other site can have its own name lead to 127.0.0.1, and would be let in by the browser.
    """

    def admits(self, authorization: str, host_name: str) -> bool:
        """Whether a request with these headers may see anything."""
        if self.token is None:
            return host_name.strip("[]").lower() in self.names
        return hmac.compare_digest(_shown(authorization).encode(), self.token.encode())


def open_access(options: StatusOptions) -> Access:
    """Read the files that the options name. Raises BadAccess."""
    token = _read_token(options.token_file) if options.token_file else None
    tls = _tls(options.tls_certificate, options.tls_key) if options.tls_certificate else None
    return Access(token, tls, frozenset({*_LOCAL_NAMES, options.address}))


def _shown(authorization: str) -> str:
    """The token in a header: after Bearer, or as the password of Basic, which browsers ask for."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2]
        except ValueError:  # no base64, or no text in it
            return ""
    return ""


def _read_token(path: Path) -> str:
    # Imported here: NumPy, which it brings, would slow down every command's help.
    from spool.storage.disk import opened, read_at  # noqa: PLC0415

    try:
        with opened(path, links=True) as file:
            mode, data = os.fstat(file.fileno()).st_mode, read_at(file.fileno(), _MOST_BYTES + 1, 0)
        token = data.decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadAccess("token_file", f"{path} cannot be read: {reason}") from None
    if len(data) > _MOST_BYTES:
        raise BadAccess("token_file", f"{path} has more than {_MOST_BYTES} bytes")
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise BadAccess("token_file", f"{path} can be read by every user of this host; chmod o= it")
    if len(token) < _LEAST_CHARACTERS or not token.isascii() or not token.isprintable() or " " in token:
        raise BadAccess(
            "token_file",
            f"{path} must hold one line of at least {_LEAST_CHARACTERS} ASCII characters without spaces; "
            "try openssl rand -hex 24",
        )
    return token


def _tls(certificate: Path, key: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # The empty password: a key that wants one would ask on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        named = f"{certificate}" + (f" and tls_key {key}" if key else "")
        reason = "no certificate in PEM, or not with this key" if isinstance(error, ssl.SSLError) else None
        raise BadAccess("tls_certificate", f"{named} cannot be used: {reason or error.strerror}") from None
    return context


def await_client(options: StatusOptions, beat: Callable[[], None]) -> socket.socket:
    """Listen as soon as possible, and return the listening socket when somebody has connected to it.

    `beat` is called every BEAT_S.
    """
    listener, ready = _listen(options, beat), list[socket.socket]()
    while not ready:
        beat()
        ready, _, _ = select.select([listener], [], [], BEAT_S)
    return listener


def _listen(options: StatusOptions, beat: Callable[[], None]) -> socket.socket:
    host, port, said = options.address, options.port, False
    while True:
        beat()
        try:
            listener = open_listener(options)
        except OSError as error:
            if not said:
                reason = "it is taken" if error.errno == errno.EADDRINUSE else error.strerror
                log.warning(
                    "no status page on %s port %d: %s; tried again every %.0f s, see [status] port",
                    host,
                    port,
                    reason,
                    _AGAIN_S,
                )
            said = True
            time.sleep(_AGAIN_S)
        else:
            scheme = "https" if options.tls_certificate else "http"
            log.info("status page on %s://%s:%d/", scheme, f"[{host}]" if ":" in host else host, port)
            return listener


def open_listener(options: StatusOptions) -> socket.socket:
    """The listening socket, which does not block. Raises OSError."""
    is_ipv6 = ipaddress.ip_address(options.address).version == 6  # noqa: PLR2004  (the name says it)
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    listener = socket.create_server((options.address, options.port), family=family, backlog=_BACKLOG)
    listener.setblocking(False)
    return listener
