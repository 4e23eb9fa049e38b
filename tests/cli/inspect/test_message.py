"""`brucectl inspect show`: one message, its place and its outcome."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from spool.layout import Layout
from tests.cli.inspecting import ODD, inspect, state_of
from tests.cli.program import run
from tests.daemon import RunningBruce


def shown(*arguments: object) -> dict[str, Any]:
    """The output with `--json`."""
    return dict(json.loads(inspect("show", "--json", *arguments).stdout))


def test_as_json(layout: Layout) -> None:
    """The documented shape, for a message that is neither delivered nor marked."""
    path = layout.segment(1, ".spare")
    found = shown(17, "--spool", layout.directory)
    assert len(found["frame"].pop("xxh3")) == 16
    uuid = (layout.directory / "identity").read_text().splitlines()[0]
    assert found == {
        "version": 1,
        "spool": uuid,
        "segment": {"path": str(path), "number": 1, "packed": False, "sealed": False},
        "frame": {"offset": found["frame"]["offset"], "burst": 2, "messages": 3, "salvaged": False},
        "place": 0,
        "committed": None,
        "fate": "unknown",
        "reason": None,
        "sequence": 17,
        "received": "2001-09-09T01:47:40.000000000Z",
        "topic": "u",
        "partition_key": -7,
        "to_partition": None,
        "timestamp": -5,
        "key": "key",
        "value": "välue",
        "headers": [],
        "uid": 1000,
        "pid": 4711,
        "datagram_bytes": 42,
        "partition": {
            "number": None,
            "of": None,
            "reason": "nothing says how many partitions its topic has: none was delivered yet",
        },
        "kafka": None,
    }
    assert "value" not in shown(17, "--no-values", "--spool", layout.directory)


def test_as_a_page(layout: Layout) -> None:
    """One fact on each line, then the bytes; the content of a message cannot command a terminal."""
    page = inspect("show", 18, "--spool", layout.directory).stdout
    facts = dict(line.split("  ", 1) for line in page.partition("\n\n")[0].splitlines())
    assert facts["message"].strip().startswith("18 of spool ")
    assert "message 2 of 3" in facts["frame"]
    assert facts["topic"].strip() == "u"
    assert "uid 1000, pid 4711" in facts["received"]
    dump = page.split("\nvalue\n")[1].splitlines()
    assert bytes.fromhex(dump[0][12:61]) == ODD[:16]
    assert dump[0].endswith("  ..tab.line.escap")
    assert "\x1b" not in page
    assert "\nvalue\n" not in inspect("show", 18, "--no-values", "--spool", layout.directory).stdout


def test_a_file_by_itself(layout: Layout, tmp_path: Path) -> None:
    """A segment without its spool gives everything except the outcome of the message."""
    bare = tmp_path / "anything"
    bare.write_bytes(layout.segment(1, ".spare").read_bytes())
    found = shown(3, bare)
    assert (found["value"], found["fate"], found["segment"]["path"]) == ("3", "unknown", str(bare))


def test_what_cannot_be_shown(layout: Layout, tmp_path: Path) -> None:
    """Not yet written, in none of the files, or damaged: one sentence, exit code 1."""
    path, bare = layout.segment(1, ".spare"), tmp_path / "bare.seg"
    bare.write_bytes(path.read_bytes())
    with path.open("r+b") as file:
        file.seek(384 + 100)
        file.write(b"rot")
    cases: list[tuple[list[object], str]] = [
        ([20, "--spool", layout.directory], "message 20 is not there yet: the next will be 20\n"),
        ([20, bare], "none of these files holds message 20\n"),
        ([3, "--spool", layout.directory], f"message 3 cannot be read: {path} is damaged at byte 384; "),
    ]
    for arguments, sentence in cases:
        done = inspect("show", *arguments, code=1)
        assert done.stderr.startswith(sentence)
        assert (done.stderr.count("\n"), done.stdout) == (1, "")
    before = state_of(layout.directory)
    inspect("show", 17, "--spool", layout.directory)
    assert state_of(layout.directory) == before


def test_what_became_of_it(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Delivered, discarded with its reason, or waiting; with the daemon at work, and with a dead one."""
    bruce.send([encode(b"t", b"good", partition_key=6), encode(b"..", b"bad")])
    bruce.await_status(lambda s: s.delivered == 1 and sum(s.discarded.values()) == 1)
    kafka.down()
    bruce.send([encode(b"t", b"late")])
    bruce.await_status(lambda s: s.watermarks.synced == 3)

    def outcomes() -> list[tuple[str, str | None, bool]]:
        found = [
            json.loads(run("inspect", "show", n, "--json", environ=bruce.environ).stdout) for n in range(3)
        ]
        assert found[0]["partition"] == {
            "number": 2,
            "of": 4,
            "reason": "its partition key, unsigned, modulo 4",
        }
        return [(one["fate"], one["reason"], one["committed"]) for one in found]

    expected = [("delivered", None, True), ("discarded", "unknown_topic", True), ("waiting", None, True)]
    assert outcomes() == expected
    bruce.kill9()
    assert outcomes() == expected
