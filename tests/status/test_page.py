"""The page in a real browser: what it shows, and how soon."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.wire import encode
from tests.status.browser import Browser, find_browser
from tests.status.conftest import EVIL, Served

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests of this file."""
    program = find_browser()
    assert program
    with Browser(program) as running:
        yield running


def test_what_it_shows(served: Served, browser: Browser) -> None:
    """Inputs, spool, brokers, watermarks, topics, discards with samples, workers; it loads nothing else."""
    browser.show(served.url)
    seen = browser.await_text(lambda text: "broker 3" in text and EVIL.decode() in text)
    for words in ("43 received in all", "40 delivered in all", "supervisor", "router", "unknown topic"):
        assert words in seen
    assert "41" in browser.text("#marks")
    assert "short" in browser.evaluate("document.querySelector('#samples').textContent")
    assert browser.evaluate("document.title").endswith("bruce: 0 waiting")
    origins = browser.evaluate("performance.getEntriesByType('resource').map(e => e.name)")
    assert all(name.startswith(f"{served.url}/api/v1/") for name in origins)
    assert browser.complaints == []


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone(served: Served, browser: Browser, *, dark: bool) -> None:
    """Nothing is wider than the screen of a phone; colours follow the system's."""
    browser.show(served.url, width=390, height=844, dark=dark)
    browser.await_text(lambda text: "broker 3" in text and EVIL.decode() in text)
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(16, 20, 27)") is dark


def test_a_broker_goes_down(served: Served, browser: Browser, kafka: EmbeddedKafka) -> None:
    """The page that is open shows it, and that it is back, without being asked."""

    def shows(words: str, text: str) -> bool:
        # A broker that gets nothing has no connection that could break.
        served.bruce.send(encode(b"t", b"more", partition_key=n) for n in range(4))
        return words in " ".join(text.split())

    browser.show(served.url)
    browser.await_text(lambda text: shows("broker 3", text) and "stalled" not in text, "#brokers")
    kafka.down(2)
    try:
        browser.await_text(lambda text: shows("broker 2 stalled", text), "#brokers")
    finally:
        kafka.up(2)
    browser.await_text(lambda text: shows("broker 2", text) and "stalled" not in text, "#brokers")


def test_bruce_is_gone(served: Served, browser: Browser) -> None:
    """A page that hears nothing more says so. It is the last test of this file: it ends the daemon."""
    browser.show(served.url)
    browser.await_text(lambda text: "broker 3" in text)
    served.bruce.kill9()
    browser.await_text(lambda text: "no connection" in text or "nothing heard" in text, "#verdict")
