"""The kinds of values in bruce.toml.

Each kind takes a value as TOML gives it, and says in `accepts` what it takes. An environment variable is
text: `from_text` makes the value of it that the file would have.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_BEYOND_BYTES = 1 << 62
"""No disk is as large, and twice as much is no integer to NumPy."""
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"([0-9]+) ?([A-Za-z]*)")


class Kind(Protocol):
    """A kind of value."""

    @property
    def accepts(self) -> str:
        """The values that are allowed, as it follows "expected"."""

    def from_text(self, text: str) -> object:
        """The TOML value that this text of an environment variable means."""

    def parse(self, value: object) -> Any:
        """The value for the options. Raises ValueError."""


class _Text:
    """Kinds whose value is a string in TOML as well."""

    def from_text(self, text: str) -> object:
        return text


@dataclass(frozen=True, slots=True)
class AbsolutePath(_Text):
    """A path that means the same wherever the daemon was started."""

    most_bytes: int = 4095

    @property
    def accepts(self) -> str:
        return f"an absolute path of at most {self.most_bytes} bytes"

    def parse(self, value: object) -> Path:
        if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
            raise ValueError(value)
        if len(os.fsencode(value)) > self.most_bytes:
            raise ValueError(value)
        return Path(value)


@dataclass(frozen=True, slots=True)
class Size(_Text):
    """Bytes, as a number or with a binary unit."""

    least_bytes: int
    multiple_of: int = 1

    @property
    def accepts(self) -> str:
        multiple = f", a multiple of {self.multiple_of}" if self.multiple_of > 1 else ""
        return f'bytes, such as 67108864 or "64MiB", at least {format_size(self.least_bytes)}{multiple}'

    def parse(self, value: object) -> int:
        size = parse_size(value) if isinstance(value, str) else _whole(value)
        if not self.least_bytes <= size < _BEYOND_BYTES or size % self.multiple_of:
            raise ValueError("no size of this kind")
        return size


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number."""

    least: int
    most: int
    unit: str

    @property
    def accepts(self) -> str:
        return f"a whole number of {self.unit} from {self.least} to {self.most}"

    def from_text(self, text: str) -> object:
        return int(text) if re.fullmatch("[0-9]{1,18}", text) else text

    def parse(self, value: object) -> int:
        number = _whole(value)
        if not self.least <= number <= self.most:
            raise ValueError("out of range")
        return number


@dataclass(frozen=True, slots=True)
class Switch:
    """On or off."""

    accepts: str = "true or false"

    def from_text(self, text: str) -> object:
        return {"true": True, "false": False}.get(text, text)

    def parse(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError(value)  # noqa: TRY004  (to the caller every refusal is one)
        return value


@dataclass(frozen=True, slots=True)
class Choice(_Text):
    """One of a few words."""

    words: tuple[str, ...]
    remark: str = ""

    @property
    def accepts(self) -> str:
        return " or ".join(f'"{word}"' for word in self.words) + self.remark

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise ValueError(value)
        return value


@dataclass(frozen=True, slots=True)
class Address(_Text):
    """An IP address of this host."""

    accepts: str = 'an IP address such as "127.0.0.1", "0.0.0.0" or "::1"'

    def parse(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(value)  # noqa: TRY004  (to the caller every refusal is one)
        return str(ipaddress.ip_address(value))


@dataclass(frozen=True, slots=True)
class Mode(_Text):
    """The mode of a file, as chmod takes it."""

    accepts: str = 'a mode in octal digits, such as "0660"'

    def parse(self, value: object) -> int:
        if not isinstance(value, str) or not re.fullmatch("0?[0-7]{3}", value):
            raise ValueError(value)
        return int(value, 8)


@dataclass(frozen=True, slots=True)
class GroupName(_Text):
    """The name of a group of the host. Whether there is one is seen when it is needed."""

    accepts: str = "the name of a group"

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}", value):
            raise ValueError(value)
        return value


@dataclass(frozen=True, slots=True)
class SenderNames:
    """The senders that may write. Whether this host knows them is checked when it matters."""

    accepts: str = (
        'a list of "user:NAME", "uid:NUMBER", "group:NAME", "gid:NUMBER", "tcp", "everybody"; [] for none'
    )

    def from_text(self, text: str) -> object:
        return text

    def parse(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise ValueError(value)  # noqa: TRY004  (to the caller every refusal is one)
        for name in value:
            if not isinstance(name, str) or not re.fullmatch(
                r"(user|group):[A-Za-z0-9_][A-Za-z0-9_.@-]*[$]?|[ug]id:(0|[1-9][0-9]{0,8})|tcp|everybody",
                name,
            ):
                raise ValueError(value)
        return tuple(value)


@dataclass(frozen=True, slots=True)
class Share(_Text):
    """A part of a whole, in percent."""

    accepts: str = 'a share such as "20%", from 1% to 100%'

    def parse(self, value: object) -> float:
        found = re.fullmatch(r"([1-9][0-9]?|100)%", value) if isinstance(value, str) else None
        if not found:
            raise ValueError(value)
        return int(found[1]) / 100


@dataclass(frozen=True, slots=True)
class Partitioner(Choice):
    """A partitioner by name, or a function of the user's own."""

    @property
    def accepts(self) -> str:
        return ", ".join(f'"{word}"' for word in self.words) + ' or "module:function"'

    def parse(self, value: object) -> str:
        if isinstance(value, str) and re.fullmatch(r"[^\W\d][\w.]*:[^\W\d]\w*", value):
            return value
        return Choice.parse(self, value)


@dataclass(frozen=True, slots=True)
class TopicName(_Text):
    """The name of a topic in Kafka."""

    accepts: str = "letters, digits, dots, dashes and underscores, at most 249"

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(r"(?!\.\.?$)[A-Za-z0-9._-]{1,249}", value):
            raise ValueError(value)
        return value


@dataclass(frozen=True, slots=True)
class Property(_Text):
    """The value of a librdkafka property, which librdkafka itself checks."""

    accepts: str = "a string, a number, true or false"

    def parse(self, value: object) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if not isinstance(value, str | int | float):
            raise ValueError(value)  # noqa: TRY004  (to the caller every refusal is one)
        return str(value)


@dataclass(frozen=True, slots=True)
class CredentialName(_Text):
    """The name of a credential of systemd: that of a file, without any folder."""

    accepts: str = "the name of a credential, without a slash"

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(r"(?!\.\.?$)[^/\0]{1,255}", value):
            raise ValueError(value)
        return value


def _whole(value: object) -> int:
    # bool is an int to Python, and not to a reader of the file.
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(value)  # noqa: TRY004  (to the caller every refusal is one)
    return value


def parse_size(text: str) -> int:
    """The bytes that "64MiB", "64 MiB" or "67108864" mean.

    Raises ValueError for anything else: decimal units too, since "64MB" may mean either.
    """
    found = _SIZE.fullmatch(text)
    if not found or found[2] not in _UNITS:
        raise ValueError(f"{text!r} is no size")
    return int(found[1]) * _UNITS[found[2]]


def format_size(size_bytes: int) -> str:
    """The shortest text that `parse_size` reads as exactly this many bytes."""
    unit = max((unit for unit in _UNITS if size_bytes % _UNITS[unit] == 0), key=lambda unit: _UNITS[unit])
    return f"{size_bytes // _UNITS[unit]}{unit}" if size_bytes else "0"
