"""Secrets stay where they were given: nothing that a daemon or a command shows has them."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from dispatch.client import KafkaClient
from dispatch.embedded import EmbeddedKafka
from dispatch.errors import Unreachable
from dispatch.options import DispatchOptions
from tests.daemon import RunningBruce, free_port
from tests.router.outlet import keyed

MARK = "s3cr3t"
SECRETS = {
    "sasl.username": "bruce",
    "sasl.password": f"{MARK}-of-sasl",
    "ssl.key.password": f"{MARK}-of-key",
    "sasl.oauthbearer.client.secret": f"{MARK}-of-oauth",
    "sasl.oauthbearer.config": f"principal={MARK}-of-config",
    "ssl.key.pem": f"-----BEGIN PRIVATE KEY-----\n{MARK}-of-pem\n-----END PRIVATE KEY-----\n",
}
CREDENTIAL = f"{MARK}-of-keystore"
"""In a file of the service manager's."""
SECURED = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
TOKEN = f"{MARK}-of-the-status-page"
PAGES = [
    *("/", "/metrics", "/healthz", "/readyz", "/nothing"),
    *(f"/api/v1/{name}" for name in ("status", "flow", "history", "discards", "schema", "nothing")),
    *(
        f"/{name}/{form}"
        for name in ("server_info", "counters", "queues", "discards")
        for form in ("plain", "json")
    ),
    "/metadata_fetch_time/json",
]
COMMANDS = [
    ["status"],
    ["status", "--json"],
    ["doctor"],
    ["doctor", "--json"],
    ["inspect", "records"],
    ["inspect", "verify", "--json"],
    ["config", "show"],
    ["config", "show", "--json"],
    ["config", "check"],
    ["discards", "--json"],
]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker that knows no passwords."""
    with EmbeddedKafka(brokers=1, topics=[("t", 2)]) as running:
        yield running


def processes(bruce: RunningBruce) -> list[psutil.Process]:
    """The daemon's."""
    supervisor = psutil.Process(bruce.pid)
    return [supervisor, *supervisor.children(recursive=True)]


def pages(port: int, path: str) -> str:
    """A page, with the token and without it."""
    said = ""
    for headers in ({"Authorization": f"Bearer {TOKEN}"}, {}, {"Authorization": "Bearer wrong"}):
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                said += f"{answer.headers}{answer.read().decode('utf-8', 'replace')}"
        except urllib.error.HTTPError as error:
            with error:
                said += f"{error.headers}{error.read().decode('utf-8', 'replace')}"
    return said


def test_librdkafka_tells_what_it_is_made_of_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    """At the lowest level of its log, with all of its debugging on."""
    caplog.set_level(logging.DEBUG, "dispatch.librdkafka")
    more = {"bootstrap.servers": "127.0.0.1:9", "debug": "all", "log_level": "7", **SECURED}
    with closing(KafkaClient(DispatchOptions(kafka=SECRETS | more))) as client:
        with pytest.raises(Unreachable):
            client.fetch_all(0.5)
        client.note_events()
    assert "sasl.password" in caplog.text
    assert MARK not in caplog.text


@pytest.mark.long
def test_nothing_that_is_shown_has_a_secret(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Processes, logs, status, page, API and commands; failing, killed, and reloaded with a bad value."""
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    port = free_port()
    settings = {
        "kafka": {
            **SECRETS,
            **SECURED,
            "ssl.keystore.password.credential": "keystore",
            # All that librdkafka says of itself, its configuration among it.
            "debug": "all",
            "log_level": 7,
        },
        "status": {"port": port, "token_file": str(tmp_path / "token")},
    }
    (tmp_path / "keystore").write_text(CREDENTIAL)
    bruce = RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings)
    # A process that crashes then says where it was.
    bruce.environ |= {"CREDENTIALS_DIRECTORY": str(tmp_path), "PYTHONFAULTHANDLER": "1"}
    bruce.config.chmod(0o600)
    with bruce:
        bruce.send(keyed(3))
        bruce.send([b"malformed"])
        bruce.await_status(lambda s: bool(s.trouble), 60)
        bruce.await_page()
        before = {worker.role: worker.pid for worker in bruce.status().workers}
        os.kill(before["delivery"], signal.SIGABRT)
        bruce.await_true(
            lambda: {w.role: w.pid for w in bruce.status().workers}["delivery"] not in (0, before["delivery"])
        )
        bruce.configure({"kafka": {"sasl.password": f"{MARK}-new", "linger.ms": f"{MARK}-as-a-number"}})
        bruce.tell(signal.SIGHUP)
        bruce.await_true(lambda: bruce.logged("linger.ms") > 0)
        shown = {"config check, of a bad value": output(bruce, ["config", "check"])}
        bruce.configure({"kafka": {"linger.ms": 5, "sasl.password": SECRETS["sasl.password"]}})
        # The new delivery worker has to find out for itself.
        bruce.await_status(lambda s: bool(s.trouble), 60)
        shown |= {" ".join(command): output(bruce, command) for command in COMMANDS}
        shown |= {path: pages(port, path) for path in PAGES}
        for process in processes(bruce):
            place = Path(f"/proc/{process.pid}")
            shown[f"{place}/cmdline"] = (place / "cmdline").read_bytes().decode(errors="replace")
            shown[f"{place}/environ"] = (place / "environ").read_bytes().decode(errors="replace")
        assert "(hidden)" in shown["config show"]
        assert json.loads(shown["status --json"])["trouble"]
    assert bruce.logged("Fatal Python error: Aborted")
    shown["log"] = bruce.log.read_text(errors="replace")
    # A malformed number is shown: a password in its place would be shown as well.
    found = {
        name: re.findall(rf".*{MARK}.*", text.replace(f"{MARK}-as-a-number", ""))[:3]
        for name, text in shown.items()
        if MARK in text.replace(f"{MARK}-as-a-number", "")
    }
    assert found == {}


def output(bruce: RunningBruce, command: list[str]) -> str:
    """A command's output, on either stream."""
    done = bruce.brucectl(*command, timeout_s=120)
    return (done.stdout + done.stderr).decode(errors="replace")
