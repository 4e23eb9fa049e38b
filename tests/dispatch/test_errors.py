"""The codes of errors are those of librdkafka."""

from __future__ import annotations

from dispatch.errors import Code
from dispatch.librdkafka import load


def test_codes_are_librdkafkas() -> None:
    """Each number of ours has a name in the library."""
    library = load()
    for code in Code:
        assert not library.error_name(code).startswith("ERR_"), code
