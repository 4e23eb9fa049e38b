"""The page put together: page.html with page.css and page.js inside; its policy lets nothing else run."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib.resources import files
from typing import NamedTuple


class Page(NamedTuple):
    """What is sent."""

    html: str
    policy: str
    """Its Content-Security-Policy: a topic's name that tried to be a script would be none."""


@functools.cache
def compose() -> Page:
    """The page, with no word of any spool in it."""
    html, style, script = (
        (files("status") / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html.replace("/* page.css */", style).replace("/* page.js */", script), policy)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
