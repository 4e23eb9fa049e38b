"""Access to the page: tokens, TLS, and settings that are refused before anything starts."""

from __future__ import annotations

import base64
import os
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.config.config import load_config
from cli.status.snapshot import ROLES
from cli.terminal.errors import ConfigError
from dispatch.embedded import EmbeddedKafka
from spool.shared.state import BEAT, WORKER_WORDS, Field
from status.access import BadAccess, StatusOptions, open_access
from tests.daemon import RunningBruce, free_port
from tests.status.conftest import Served, serve

TOKEN = "0123456789abcdef0123"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A valid token file."""
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


def certificate(directory: Path) -> tuple[Path, Path]:
    """(certificate, key) of 127.0.0.1, self-signed."""
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl")
    found = directory / "cert.pem", directory / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=bruce"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(found[0]), "-keyout", str(found[1])]
    subprocess.run(command, check=True, capture_output=True)
    return found


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('address = "0.0.0.0"', '[status] address = "0.0.0.0": other hosts may look only with a token; '),
        ('address = "::"', '[status] address = "::": other hosts may look only with a token; '),
        ('tls_key = "/k"', "[status] tls_key belongs to a certificate"),
        ('address = "localhost"', '[status] address = "localhost": expected an IP address such as'),
        ("port = 70000", "[status] port = 70000: expected a whole number of port numbers from 0 to 65535"),
    ],
)
def test_what_the_file_may_not_say(tmp_path: Path, table: str, sentence: str) -> None:
    """One sentence names the wrong setting, before anything starts."""
    file = tmp_path / "bruce.toml"
    file.write_text(f"[kafka]\n'bootstrap.servers' = 'x'\n[status]\n{table}\n")
    with pytest.raises(ConfigError) as refused:
        load_config(file, environ={}, uid=0)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [
        ("short", 0o600, "at least 16 ASCII characters"),
        ("", 0o600, "at least 16 ASCII characters"),
        ("two words that are long enough", 0o600, "without spaces"),
        (TOKEN, 0o644, "can be read by every user of this host"),
    ],
)
def test_bad_tokens(tmp_path: Path, text: str, mode: int, sentence: str) -> None:
    """A short token, one with spaces, or a file that all can read is refused; the token is not quoted."""
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(BadAccess, match=sentence) as refused:
        open_access(StatusOptions(token_file=path))
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (os.mkfifo, "cannot be read: a pipe"),
        (Path.mkdir, "cannot be read: a directory"),
        (lambda path: path.symlink_to("/dev/zero"), "cannot be read: a device"),
        (lambda path: path.write_text("x" * 4097), "has more than 4096 bytes"),
    ],
)
def test_a_token_file_is_a_small_file(tmp_path: Path, make: Callable[[Path], object], sentence: str) -> None:
    """Nothing else is opened or waited for."""
    path = tmp_path / "token"
    make(path)
    with pytest.raises(BadAccess, match=sentence):
        open_access(StatusOptions(token_file=path))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """For token and certificate, one sentence names the file."""
    with pytest.raises(BadAccess, match="token_file /nowhere cannot be read: No such file"):
        open_access(StatusOptions(token_file=Path("/nowhere")))
    with pytest.raises(BadAccess, match="tls_certificate /nowhere cannot be used: No such file"):
        open_access(StatusOptions(tls_certificate=Path("/nowhere")))
    none = tmp_path / "none.pem"
    none.write_text("no certificate")
    with pytest.raises(BadAccess, match="no certificate in PEM, or not with this key"):
        open_access(StatusOptions(tls_certificate=none))


def test_token(kafka: EmbeddedKafka, tmp_path: Path, token_file: Path) -> None:
    """All but the probes demand the token: after Bearer, or as a browser's password; it is shown nowhere."""
    bruce, port = serve(tmp_path, kafka, {"status": {"token_file": str(token_file)}})
    with bruce:
        served = Served(bruce, port)
        bruce.await_true(served.answers)
        basic = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
        paths = (
            "/",
            "/metrics",
            "/api/v1/status",
            "/api/v1/discards",
            "/api/v1/schema",
            "/counters/json",
            "/no",
        )
        for path in paths:
            for shown in (None, f"Bearer {TOKEN[:-1]}", "Bearer \xff", "Basic !", "Basic \xff", "Basic /w=="):
                wrong = {} if shown is None else {"Authorization": shown}
                refused = served.get(path, wrong)
                assert (refused.status, list(refused.json())) == (401, ["error"])
                assert refused.headers.get_all("WWW-Authenticate")[0].startswith("Basic ")
        for right in (f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Basic {basic}"):
            # By any name: another site cannot lead here a browser that knows the token.
            answer = served.get("/api/v1/status", {"Authorization": right, "Host": "bruce.example"})
            assert answer.status == 200
            assert TOKEN.encode() not in answer.body
        assert served.get("/healthz").status == served.get("/readyz").status == 200
        assert TOKEN not in bruce.log.read_text()


def test_tls(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """With a certificate the page is at https, and a client that knows the certificate accepts it."""
    cert, key = certificate(tmp_path)
    settings = {"status": {"tls_certificate": str(cert), "tls_key": str(key)}}
    bruce, port = serve(tmp_path, kafka, settings)
    with bruce:
        served = Served(bruce, port, ssl.create_default_context(cafile=cert))
        bruce.await_true(served.answers)
        assert served.get("/api/v1/status").status == 200
        with pytest.raises(OSError, match=r"reset|closed|disconnected|BadStatusLine|remote"):
            Served(bruce, port).get("/api/v1/status")


def test_a_start_with_a_bad_token(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Exit code 2, one sentence, no traceback."""
    bruce, _ = serve(tmp_path, kafka, {"status": {"token_file": "/nowhere"}})
    bruce.start(wait=False)
    try:
        assert bruce.await_end() == 2
    finally:
        bruce.close()
    assert bruce.log.read_text().count("\n") == 1
    assert "[status] token_file /nowhere cannot be read: No such file or directory" in bruce.log.read_text()


def test_the_server_is_loaded_for_a_client(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """Until a first client connects, the status worker has no Tornado in its memory; then it serves by it."""
    port, row = free_port(), Field.WORKERS + WORKER_WORDS * ROLES.index("status")
    settings = {"status": {"port": port}}
    # In a process of its own: a fork of the tests' may have Tornado already.
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings, prefix=("env",)) as bruce:

        def maps() -> str:
            words = bruce.words()
            assert words is not None
            # The worker may beat before the supervisor has entered its process id.
            ready = words[row] and words[row + BEAT]
            return Path(f"/proc/{words[row]}/maps").read_text() if ready else ""

        # It listens, and waits.
        bruce.await_true(lambda: bool(maps()) and is_listening(port))
        assert "/tornado/" not in maps()
        bruce.await_true(Served(bruce, port).answers)
        assert "/tornado/" in maps()


def is_listening(port: int) -> bool:
    """Whether a socket of this host listens there; no connection is made."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)
