"""A bruce.toml as text. JSON's strings, numbers and truths are TOML's."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping

_WIDTH = 100


def write_tables(tables: Mapping[str, Mapping[str, object]]) -> str:
    """A head for each table, in order; `topics.NAME` heads a topic's, `input.NUMBER` one of several."""
    parts = []
    for name, keys in tables.items():
        table, _, topic = name.partition(".")
        lines = [f"[{table}.{json.dumps(topic)}]" if topic else f"[{table}]"]
        if table == "input":
            lines = ["[[input]]"]
        lines += [f"{_key(key)} = {json.dumps(value)}" for key, value in keys.items()]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def comment(sentences: Iterable[str]) -> str:
    """Sentences as comments, each on lines of its own."""
    lines = (
        textwrap.fill(sentence, _WIDTH, initial_indent="# - ", subsequent_indent="#   ")
        for sentence in sentences
    )
    return "".join(line + "\n" for line in lines)


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() else json.dumps(name)
