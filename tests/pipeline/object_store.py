"""An object store on loopback: files of a directory, by the part of S3 that reading takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_WHEN = "2026-01-01T00:00:00.000Z"


class _Server(ThreadingHTTPServer):
    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.requests: list[tuple[str, str]] = []


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self._send(200, _listing(self.server.root / self._key(), query).encode())
        else:
            self._answer(body=True)

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/")

    def _answer(self, *, body: bool) -> None:
        path, wanted = self.server.root / self._key(), self.headers.get("Range", "")
        if not path.is_file():
            self._send(200 if path.parent == self.server.root and path.is_dir() else 404, b"")
            return
        self.server.requests.append((self._key(), wanted if body else "head"))
        data = path.read_bytes()
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            self._send(206, data[int(first) : int(last) + 1], body=body)
        else:
            self._send(200, data, body=body)

    def _send(self, status: int, data: bytes, *, body: bool = True) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        if body:
            self.wfile.write(data)


@contextmanager
def object_store(root: Path) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """(the query of an address, requests as (path, range)): each folder of `root` is a bucket."""
    server = _Server(root)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"endpoint_override=127.0.0.1:{server.server_port}&scheme=http&region=here", server.requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listing(bucket: Path, query: dict[str, list[str]]) -> str:
    prefix = query.get("prefix", [""])[0]
    keys = sorted(str(path.relative_to(bucket)) for path in bucket.rglob("*") if path.is_file())
    files, folders = [], set()
    for key in keys:
        if key.startswith(prefix):
            below, slash, _ = key[len(prefix) :].partition("/")
            if slash and "delimiter" in query:
                folders.add(f"{prefix}{below}/")
            else:
                files.append(key)
    contents = "".join(
        f"<Contents><Key>{key}</Key><LastModified>{_WHEN}</LastModified>"
        f"<Size>{(bucket / key).stat().st_size}</Size></Contents>"
        for key in files
    )
    below = "".join(f"<CommonPrefixes><Prefix>{one}</Prefix></CommonPrefixes>" for one in sorted(folders))
    return (
        f"<?xml version='1.0'?><ListBucketResult><Name>{bucket.name}</Name><IsTruncated>false</IsTruncated>"
        f"<KeyCount>{len(files) + len(folders)}</KeyCount>{contents}{below}</ListBucketResult>"
    )
