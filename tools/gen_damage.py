"""Write docs/damage-*.md: the kinds of damage of the gallery, and what verify, repair and a start do.

python -m tools.gen_damage             writes the pages
python -m tools.gen_damage --check     exits 1 when one differs from what would be written
"""

from __future__ import annotations

import argparse
import itertools
import logging
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from spool.errors import SpoolError
from spool.fsck.repair import Action, Step, plan
from spool.layout import Layout
from tests.gallery import kinds
from tests.gallery.good import Good, make_good
from tests.gallery.kinds import KINDS, Spoil
from tests.gallery.trial import KILLED_IN, booted, damaged, damages, start

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = {
    DOCS / "damage-frames.md": ("Damage to frames", kinds.flipped_value),
    DOCS / "damage-segments.md": ("Segments that are cut, gone or in the wrong place", kinds.cut_sealed),
    DOCS / "damage-others.md": (
        "Damage to headers, footers, index, marks and small files",
        kinds.header_flipped,
    ),
}
"""Title, and the first of the kinds of damage, of each page."""
_HEAD = """# {title}

The commands' answers to each kind; [damage](damage.md) explains the columns.
`python -m tools.gen_damage` writes this page.

| damage | verify | repair | start |
|---|---|---|---|
"""


class _Heard(logging.Handler):
    """Collects log records of level warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.sentences: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.sentences.append(record.getMessage())


def render() -> dict[Path, str]:
    """Each page, by its path."""
    log = logging.getLogger("bruce")
    log.propagate = False
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-gallery-") as name:
        good = make_good(Path(name) / "good")
        rows = [_row(good, spoil, Path(name)) for spoil in KINDS]
        log.propagate = True
    begins = [*(KINDS.index(first) for _, first in PAGES.values()), len(KINDS)]
    parts = ("".join(rows[begin:end]) for begin, end in itertools.pairwise(begins))
    heads = (_HEAD.format(title=title) for title, _ in PAGES.values())
    return {page: head + part for page, head, part in zip(PAGES, heads, parts, strict=True)}


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
    lost = f", {one.messages_lost} lost" if len(one.lost) else ""
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
    """The text without parts that differ from run to run."""
    text = text.replace(f"{home}/spool/segments/", "").replace(f"{home}/", "")
    text = re.sub(r"\b0{8,}(\d+\.)", r"…\1", text)
    return re.sub(r"\b[0-9a-f]{32}\b", "UUID", re.sub(r"task\.[0-9a-f]{8}\.", "task.", text)).replace(
        "|", "\\|"
    )


def main() -> None:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    for page, text in render().items():
        if not check:
            page.write_text(text, encoding="utf-8")
        elif page.read_text(encoding="utf-8") != text:
            sys.exit(f"{page.name} is not current; run python -m tools.gen_damage")


if __name__ == "__main__":
    main()
