"""The first inputs of a corpus: the golden files, and the inputs that earlier campaigns kept."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tools.fuzzers import kafka_requests

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tools/fuzz_corpus"
GOLDEN = ROOT / "tests/golden"


def seeds(target: str) -> list[bytes]:
    """The inputs of a target before the fuzzer makes any."""
    kept = [path.read_bytes() for path in sorted((CORPUS / target).glob("*")) if path.is_file()]
    golden = {"frames": _segments, "datagram": _datagrams, "config": _tables, "kafka": kafka_requests.seeds}
    return golden.get(target, list)() + kept


def _segments() -> list[bytes]:
    found = [path.read_bytes() for path in sorted(GOLDEN.glob("v*/*.seg"))]
    return [bytes([which]) + segment for segment in found for which in (0, 7)]


def _datagrams() -> list[bytes]:
    """Of every kind."""
    vectors = json.loads((GOLDEN / "golden_datagrams.json").read_text())
    for listed in json.loads((GOLDEN / "messages.json").read_text()).values():
        vectors += listed
    return [bytes.fromhex(vector["datagram_hex"]) for vector in vectors]


def _tables() -> list[bytes]:
    """The examples of README.md and docs/install.md."""
    text = "".join((ROOT / name).read_text() for name in ("README.md", "docs/install.md"))
    return [block.encode() for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)]
