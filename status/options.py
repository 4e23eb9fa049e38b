"""Where the status page is, and who may look at it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StatusOptions:
    """The status page, metrics and the API. The `[status]` table of bruce.toml."""

    port: int = 9090
    """Where the page, /metrics and /api/v1/ are served; 0 for nowhere. Danger: without a token_file every
    user of this host sees counts, topics, and the first bytes of discarded messages."""
    address: str = "127.0.0.1"
    """The address to listen on: an IP address of this host, or 0.0.0.0 or :: for all. Other hosts can reach
    what is no loopback address, so that takes a token_file."""
    token_file: Path | None = None
    """A file with the token that whoever asks must show: `Authorization: Bearer TOKEN`, or in a browser as
    the password, with any user name. At least 16 characters, and nothing others may read. Danger: without
    tls_certificate it crosses the network as it is."""
    tls_certificate: Path | None = None
    """A file in PEM with the certificate to show, and those between it and its root: the page is then at
    https. It is read when bruce starts, and at a reload of the table."""
    tls_key: Path | None = None
    """The certificate's private key, in PEM; where it is not given, it stands in tls_certificate."""

    @property
    def is_local(self) -> bool:
        """Whether nobody but this host can ask."""
        return ipaddress.ip_address(self.address).is_loopback
