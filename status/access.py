"""Who may look: a token, a certificate, and the names by which a page without a token may be asked for."""

from __future__ import annotations

import base64
import hmac
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from status.errors import BadAccess
from status.options import StatusOptions

_LEAST_CHARACTERS = 16
_MOST_BYTES = 4096
"""Of a file with a token: somebody may name one that never ends."""
_LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True, slots=True)
class Access:
    """What a request must show, and what is shown to it."""

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
    """Read what the options name. Raises BadAccess."""
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
    try:
        with path.open("rb") as file:
            token, mode = file.read(_MOST_BYTES).decode("utf-8").strip(), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadAccess("token_file", f"{path} cannot be read: {reason}") from None
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
