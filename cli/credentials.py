"""Secrets that the service manager hands over: systemd's credentials, files only the service may read.

`"sasl.password.credential" = "kafka-password"` in the [kafka] table stands for the property before the last
dot, with the text of the file kafka-password in $CREDENTIALS_DIRECTORY as its value. Where there is no such
variable, as for `brucectl` beside the daemon, the directory is that of bruce.service, for who may read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cli.small_file import read_small
from dispatch.options import CREDENTIAL

SERVICE = "/run/credentials/bruce.service"


def resolve(kafka: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The properties with their secrets. One that cannot be read stays as it is: not everybody needs it."""
    directory = Path(environ.get("CREDENTIALS_DIRECTORY", SERVICE))
    resolved = {}
    for key, value in kafka.items():
        secret = _read(directory / value) if key.endswith(CREDENTIAL) else None
        if secret is None:
            resolved[key] = value
        else:
            resolved[key.removesuffix(CREDENTIAL)] = secret
    return resolved


def _read(path: Path) -> str | None:
    """The text of a file, without the newline at its end; None when it cannot be read."""
    try:
        return read_small(path).decode("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError):
        return None
