"""Write docs/damage.md: the kinds of damage of the gallery, and what verify, repair and a start do.

python -m tools.gen_damage             writes it
python -m tools.gen_damage --check     exits 1 when it is not as it would be written
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from spool.errors import SpoolError
from spool.layout import Layout
from spool.repair import Action, Step, plan
from tests.gallery.good import Good, make_good
from tests.gallery.kinds import KINDS, Spoil
from tests.gallery.trial import KILLED_IN, booted, damaged, damages, start

PAGE = Path(__file__).resolve().parent.parent / "docs/damage.md"
_HEAD = """# Damage, and what becomes of it

The gallery (`tests/gallery`) takes one good spool whose daemon was killed, damages a copy of it in each of
these ways, and holds `brucectl inspect verify`, `brucectl inspect repair` in its three modes and the
daemon's own start to this: no crash, no hang, no good message lost, no bad one served, each one counted.
This page is what they said; `python -m tools.gen_damage` writes it.

The spool has {messages} messages in five segments: 0 to 59 are delivered, and their segment is called sent;
60 to 119 lie in one that is packed, 240 to {last} in the one in use. What was delivered goes up to 79, and
a few behind it.

- **verify**: what it exits with 1 for. A dash: it calls nothing damage.
- **repair**: what `--apply` does, and in brackets the first `--mode` that does it. "none": nothing can be
  done.
- **start**: what its log says, in the boot in which the daemon was killed; how many of the messages are
  read from there on, and at which number the log goes on. After a reboot it goes on at a multiple of 2^32.

A frame that was cut out leaves no room for a gap: verify goes on telling of it.

## A disk that gives an error

EIO for a sealed segment, its header or a part of its body, is no damage: nobody knows what is there, and
the error of a network's disk may pass. So nothing is freed, mended, set aside or counted for it. The daemon
delivers what lies before the place and goes on behind it, at the next mark of the segment (every 64 KiB), or
with the next segment; a packed segment, and one whose header cannot be read, waits as a whole. `brucectl
status` names it (`disk`, exit code 1); `/healthz`, which asks whether processes run, does not. Every 10 s it
is tried again, also by a daemon that is started meanwhile. When it can be read its messages are delivered,
behind later ones of the same partition.

No segment behind the place is freed before, so the spool fills: `status` tells when (`filling`). If the
disk will not heal:

- stop bruce, then `brucectl inspect repair --mode skip-damaged --apply`: what can be read of the body goes
  into a fresh file, the rest is counted as damaged; the old file is kept in `quarantine/`;
- for a header, or a packed segment: stop bruce, copy the file by `dd bs=4096 conv=noerror,sync` under another
  name and move it over the first. A start writes the header anew from the segments around.

A start needs the last segment: with an error there it ends with a sentence. `brucectl replay` ends with one
where it comes to such a place, and sends nothing silently less. Held by `tests/forgetful/test_unread.py`
(a filesystem that refuses to read), `tests/spool/test_unread.py` and `tests/router/test_gaps.py`.

## Damage

| damage | verify | repair | start |
|---|---|---|---|
"""


class _Heard(logging.Handler):
    """What is logged as warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.sentences: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.sentences.append(record.getMessage())


def render() -> str:
    """The page."""
    log = logging.getLogger("bruce")
    log.propagate = False
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-gallery-") as name:
        good = make_good(Path(name) / "good")
        rows = [_row(good, spoil, Path(name)) for spoil in KINDS]
        log.propagate = True
    return _HEAD.format(messages=len(good.sent), last=max(good.sent)) + "".join(rows)


def _row(good: Good, spoil: Spoil, directory: Path) -> str:
    home = directory / spoil.__name__
    layout, _ = damaged(good, spoil, home)
    found = [f"**{one.kind.value}** {one.path.name}: {one.sentence}" for one in damages(layout)]
    cells = [(spoil.__doc__ or "").rstrip("."), _cell(found), _cell(_repair(home)), _cell(_start(good, home))]
    return "| " + " | ".join(_plain(cell, home) for cell in cells) + " |\n"


def _repair(home: Path) -> Iterator[str]:
    try:
        with booted(KILLED_IN):
            steps = plan(Layout(home / "spool"))
    except SpoolError as error:
        yield f"refused: {error}"
        return
    yield from map(_step, steps)


def _step(one: Step) -> str:
    mode = "" if one.action is Action.NONE else f" ({one.mode.value})"
    kept = "" if one.kept is None else f", {one.kept} kept"
    lost = f", {one.messages_lost} lost" if one.lost else ""
    return f"**{one.action.value}**{mode} {one.path.name}{kept}{lost}"


def _start(good: Good, home: Path) -> Iterator[str]:
    heard, log = _Heard(), logging.getLogger("bruce")
    log.addHandler(heard)
    try:
        found = start(home, KILLED_IN)
    except SpoolError as error:
        yield f"refused: {error}"
        return
    finally:
        log.removeHandler(heard)
    yield from heard.sentences
    yield f"{len(found.served) - 1} of {len(good.sent)} read; goes on at {found.new}"


def _cell(lines: Iterator[str] | list[str]) -> str:
    return "<br>".join(lines) or "-"


def _plain(text: str, home: Path) -> str:
    """Without what differs from run to run."""
    text = text.replace(f"{home}/spool/segments/", "").replace(f"{home}/", "")
    text = re.sub(r"\b0{8,}(\d+\.)", r"…\1", text)
    return re.sub(r"\b[0-9a-f]{32}\b", "UUID", re.sub(r"task\.[0-9a-f]{8}\.", "task.", text)).replace(
        "|", "\\|"
    )


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    page = render()
    if not parser.parse_args().check:
        PAGE.write_text(page, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page:
        sys.exit("docs/damage.md is not current; run python -m tools.gen_damage")


if __name__ == "__main__":
    main()
