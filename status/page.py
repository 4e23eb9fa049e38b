"""The page put together: page.html with page.css and page.js inside; its policy lets nothing else run.

It names the host, by the host's own name: whoever comes through a tunnel has called it localhost.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import socket
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
    text, style, script = (
        (files("status") / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    text = text.replace("/* page.css */", style).replace("/* page.js */", script)
    return Page(text.replace("<!-- host -->", html.escape(socket.gethostname())), policy)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
