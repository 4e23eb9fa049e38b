"""The page in a real browser: its content, and its delay."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from status.figures import release
from tests.status.browser import PATIENCE_S, Browser
from tests.status.chromium import demand_browser
from tests.status.conftest import EVIL, Served
from tests.status.test_witness import OTHER, spool, tier, write
from tools.waiting import wait_until

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of this file."""
    with Browser(demand_browser()) as running:
        yield running


def test_what_it_shows(served: Served, browser: Browser) -> None:
    """Inputs, spool, brokers, watermarks, topics, discards with samples, workers; it loads nothing else."""
    browser.show(served.url)
    seen = browser.await_text(lambda text: "broker 3" in text and EVIL.decode() in text)
    for words in (
        "43 received in all",
        "40 delivered in all",
        "supervisor",
        "router",
        "unknown_topic",
        "Witness",
    ):
        assert words in seen
    for words in ("Kafka does not have its topic", "not filling up", " MiB used by undelivered messages"):
        assert words in seen
    since = r"up since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \(\d+ (s|min)\)"
    assert re.fullmatch(rf"release {re.escape(release())}, {since}", browser.text("#release"))
    assert "The next message that is not yet at each level." in browser.text("main section:nth-of-type(2) h2")
    # No TCP port is configured.
    assert "TCP" not in browser.text("#inputs")
    numbers = [int(word) for word in re.findall(r"broker (\d)", browser.text("#brokers"))]
    assert numbers == [1, 2, 3]
    assert "41" in browser.text("#marks")
    assert "short" in browser.evaluate("document.querySelector('#samples').textContent")
    assert browser.evaluate("document.title").endswith(f"{socket.gethostname()} bruce: 0 waiting")
    assert browser.text("#host") == socket.gethostname()
    origins = browser.evaluate("performance.getEntriesByType('resource').map(e => e.name)")
    assert all(name.startswith(f"{served.url}/api/v1/") for name in origins)
    assert browser.complaints == []


FILLING = """
  const listen = EventSource.prototype.addEventListener;
  EventSource.prototype.addEventListener = function(kind, heard) {
    listen.call(this, kind, kind !== "status" ? heard : event => {
      const status = JSON.parse(event.data);
      status.room.hours_until_full = 3.25;
      heard({data: JSON.stringify(status)});
    });
  };"""
"""In place of a minute of traffic: the page hears that the spool fills."""


def test_when_it_fills(served: Served, browser: Browser) -> None:
    """The forecast of a full spool is below its bar."""
    script = browser.tell("Page.addScriptToEvaluateOnNewDocument", source=FILLING)
    try:
        browser.show(served.url)
        assert browser.await_text(bool, "#full") == "full in 3.3 h at this rate"
    finally:
        browser.tell("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])
    assert browser.complaints == []


def test_names_that_are_shown_alike(served: Served, browser: Browser) -> None:
    """A long topic is cut as brucectl cuts it; those that are cut to the same are one row, with their sum."""
    shown = "t" * 248 + "…"
    browser.show(served.url)
    browser.await_text(lambda text: "broker 3" in text)
    served.bruce.send(encode(b"t" * length, b"v") for length in (300, 301))
    cells = (
        "[...document.querySelectorAll('#discards tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
    )

    def counts() -> list[str]:
        return [row[2] for row in browser.evaluate(cells) if row[1:2] == [shown]]

    wait_until(lambda: counts() == ["2"], PATIENCE_S, "one row with both messages")
    assert "t" * 249 not in browser.text()


def test_the_witness(served: Served, browser: Browser) -> None:
    """A row for each tier and spool, the worst first, as the document changes; a witness that has stopped."""
    place = served.bruce.spool.parent / "witness"
    cells = (
        "[...document.querySelectorAll('#verdicts tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
    )
    write(place)
    browser.show(served.url)
    try:
        seen = browser.await_text(lambda text: "complete" in text, "#witness")
        assert "0 behind" in seen
        assert "the witness" not in browser.text("#wrong")
        fleet = [spool(f"{n:032x}") for n in range(30)]
        lost = spool(OTHER, EVIL.decode(), missing=2, late=1200, duplicated=3, altered_blocks=4)
        write(
            place,
            tier("main", *fleet, lost, lag=7),
            tier("lake", spools=[], error="it is away"),
            written_s=1e9,
        )
        browser.await_text(lambda text: "2 missing" in text and "it is away" in text, "#witness")
        rows = browser.evaluate(cells)
        assert rows[0] == [
            f"main\n{EVIL.decode()} ffffffff",
            "2 missing, 1,200 late, 4 blocks altered",
            "40",
            "3",
        ]
        assert [row[0] for row in rows[-2:]] == ["main\nalpha 00000000", "6 more"]
        assert "the witness has stopped: it wrote last at 2001-09-09" in browser.text("#witness-problem")
        assert "the witness finds in tier main" in browser.text("#wrong")
    finally:
        write(place)
    assert browser.complaints == []


def test_before_there_are_figures(served: Served, browser: Browser) -> None:
    """A page that still connects shows an empty bar, not a full one."""
    browser.tell("Network.enable")
    browser.tell("Network.setBlockedURLs", urls=["*/api/v1/stream"])
    try:
        browser.show(served.url)
        browser.await_text(lambda text: "Watermarks" in text)
        bar = browser.evaluate("document.querySelector('#used').getBoundingClientRect().width")
        assert browser.evaluate("document.querySelector('#witness').getClientRects().length") == 0
    finally:
        browser.tell("Network.setBlockedURLs", urls=[])
    browser.complaints.clear()
    assert bar == 0


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone(served: Served, browser: Browser, *, dark: bool) -> None:
    """Nothing is wider than the screen of a phone; colours follow the system's."""
    browser.show(served.url, width=390, height=844, dark=dark)
    browser.await_text(lambda text: "broker 3" in text and EVIL.decode() in text)
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(16, 20, 27)") is dark


def test_a_broker_goes_down(served: Served, browser: Browser, kafka: EmbeddedKafka) -> None:
    """An open page shows that the broker is down, and that it is back, without a reload."""

    def shows(words: str, text: str) -> bool:
        # A broker without messages has no connection that could break.
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


UNWELL = """
  document.querySelector(".broker").insertAdjacentHTML("beforeend", "<span class=state>stalled</span>");
  document.querySelector("#verdict").className = "pill bad";
  document.querySelector("#verdict").textContent = "unwell";
  document.querySelector("details").open = true"""
"""Until the next look, a second later."""
CONTRASTS = """(() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [.2126, .7152, .0722][at], 0);
  function ground(node) {
    for (; node; node = node.parentElement) {
      const colour = parts(getComputedStyle(node).backgroundColor);
      if (colour[3] !== 0) return colour;
    }
  }
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !node.getClientRects().length) continue;
    const style = getComputedStyle(node), ink = node instanceof SVGElement ? style.fill : style.color;
    const [high, low] = [light(parts(ink)), light(ground(node))].sort((a, b) => b - a);
    found.push([walk.currentNode.textContent.trim(), (high + .05) / (low + .05)]);
  }
  return found;
})()"""
"""Each visible text with its contrast: as WCAG 2 computes it, of relative luminances."""
AA = 4.5


@pytest.mark.parametrize("dark", [False, True])
def test_it_can_be_read(served: Served, browser: Browser, *, dark: bool) -> None:
    """Every text has the contrast that WCAG calls AA, also the texts of problems and of failed brokers."""
    browser.show(served.url, dark=dark)
    browser.await_text(lambda text: "broker 3" in text and EVIL.decode() in text)
    found = browser.evaluate(f"{UNWELL}; {CONTRASTS}")
    assert {"discarded", "stalled", "unwell", "0", "now"} <= {text for text, _ in found}
    assert {text: round(contrast, 2) for text, contrast in found if contrast < AA} == {}


def test_it_can_be_heard_and_typed_at(served: Served, browser: Browser) -> None:
    """Landmarks and headings name every part; charts, samples and links are reached by the keyboard."""
    browser.show(served.url)
    browser.await_text(lambda text: "broker 3" in text and EVIL.decode() in text)
    count = "document.querySelectorAll({}).length".format
    for landmark in ("main", "header", "footer", "h1", "[role=status]", "html[lang]"):
        assert browser.evaluate(count(json.dumps(landmark))) == 1, landmark
    for nameless in (
        "section:not([aria-label]):not(:has(h2))",
        "[role=img]:not([aria-label])",
        "th:not([scope])",
        "svg:not([tabindex='0'])",
        "a:not([href])",
    ):
        assert browser.evaluate(count(json.dumps(nameless))) == 0, nameless
    browser.evaluate("document.querySelector('#rates').focus()")
    assert browser.evaluate("document.activeElement.id") == "rates"
    for kind in ("keyDown", "keyUp"):
        browser.tell("Input.dispatchKeyEvent", type=kind, key="ArrowLeft", code="ArrowLeft")
    # A chart has no cursor while it is redrawn.
    cursors = count(json.dumps("#rates .cursor"))
    wait_until(lambda: browser.evaluate(cursors) == 1, PATIENCE_S, "the cursor")
    legend = browser.text("#rates-legend")
    assert re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", legend), legend
    browser.evaluate("document.querySelector('#rates').blur()")
    wait_until(lambda: browser.evaluate(cursors) == 0, PATIENCE_S, "the cursor to go")


def test_bruce_is_gone(served: Served, browser: Browser) -> None:
    """A page without updates says so. It is the last test of this file: it ends the daemon."""
    browser.show(served.url)
    browser.await_text(lambda text: "broker 3" in text)
    served.bruce.kill9()
    browser.await_text(lambda text: "no connection" in text or "nothing heard" in text, "#verdict")
    assert browser.evaluate("document.title").startswith("! ")
