"""bruce.h: it writes the bytes of the golden vectors, as C and as C++, and refuses what is no message."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.daemon import ROOT

GOLDEN = json.loads((ROOT / "tests/golden/messages.json").read_text())
INCLUDE = ROOT / "install/include"
COMPILERS = {
    "C99": ("cc", "c", ["-std=c99"]),
    "C++": ("c++", "cc", ["-std=c++11", "-Wno-missing-field-initializers"]),
}
_CHECKS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-pedantic",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover",
]
_BEGIN = """
#include <stdio.h>
#include "bruce.h"

static char room[1 << 20];

static struct bruce_bytes bytes(const char *at, int32_t size) {
    struct bruce_bytes made = {at, size};
    return made;
}
"""

_SHOW = """
static void show(const char *at, size_t size) {
    for (size_t i = 0; i < size; i++) printf("%02x", (unsigned char)at[i]);
    printf("\\n");
}
"""
Run = Callable[[str], list[str]]


@pytest.fixture(params=COMPILERS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Compile the text of a program's functions, run it, and give the lines that it prints."""
    compiler, suffix, options = COMPILERS[request.param]
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")

    def run(text: str) -> list[str]:
        source = tmp_path / f"program.{suffix}"
        source.write_text(_BEGIN + text)
        built = tmp_path / "program"
        subprocess.run(
            [compiler, *options, *_CHECKS, f"-I{INCLUDE}", "-o", built, source], check=True, timeout=300
        )
        return subprocess.run([built], check=True, capture_output=True, text=True, timeout=60).stdout.split(
            "\n"
        )

    return run


def literal(data: bytes) -> str:
    """As a string of C."""
    return '"' + "".join(f"\\{byte:03o}" for byte in data) + '"'


def value(text: str | None) -> str:
    """Bytes, or null, as C has them."""
    if text is None:
        return "bytes(0, 0)"
    data = bytes.fromhex(text)
    return f"bytes({literal(data)}, {len(data)})"


def fill(one: dict[str, object], number: int) -> str:
    """Statements that make message `number` of the vectors."""
    headers = [
        f"  headers{number}[{place}].name = {literal(name.encode())};\n"
        f"  headers{number}[{place}].value = {value(text)};\n"
        for place, (name, text) in enumerate(one["headers"])  # type: ignore[arg-type,var-annotated]
    ]
    by = "BRUCE_BY_PARTITION" if one["partition"] is not None else "BRUCE_BY_PARTITION_KEY"
    chosen = one["partition"] if one["partition"] is not None else one["partition_key"]
    lines = [
        f"  static struct bruce_header headers{number}[{max(1, len(headers))}];\n",
        *headers,
        f"  m[{number}].topic = {literal(str(one['topic']).encode())};\n",
        f"  m[{number}].key = {value(one['key_hex'])};\n",  # type: ignore[arg-type]
        f"  m[{number}].value = {value(one['value_hex'])};\n",  # type: ignore[arg-type]
        f"  m[{number}].timestamp_ms = (int64_t){int(one['timestamp']) % (1 << 64)}ULL;\n",  # type: ignore[call-overload]
        f"  m[{number}].by = {'BRUCE_ANY' if chosen is None else by};\n",
        f"  m[{number}].number = {chosen or 0};\n",
        f"  m[{number}].headers = headers{number};\n  m[{number}].header_count = {len(headers)};\n",
    ]
    return "".join(lines)


def messages() -> str:
    """A function that makes all of them."""
    made = "".join(fill(one, number) for number, one in enumerate(GOLDEN["messages"]))
    return (
        f"static struct bruce_message m[{len(GOLDEN['messages'])}];\n\nstatic void make(void) {{\n{made}}}\n"
    )


def test_it_writes_the_golden_messages(run: Run) -> None:
    """Each message, and each batch, byte for byte."""
    count = len(GOLDEN["messages"])
    batches = "".join(
        "  bruce_batch_begin(&batch, room, sizeof room);\n"
        + "".join(f"  if (!bruce_batch_add(&batch, &m[{number}])) return 1;\n" for number in one["messages"])
        + "  show(room, bruce_batch_end(&batch));\n"
        for one in GOLDEN["batches"]
    )
    found = run(
        f"{_SHOW}{messages()}\nint main(void) {{\n  struct bruce_batch batch;\n  make();\n"
        f"  for (int i = 0; i < {count}; i++) show(room, bruce_encode(room, sizeof room, &m[i]));\n"
        f"{batches}  return 0;\n}}\n"
    )
    wanted = [one["datagram_hex"] for one in [*GOLDEN["messages"], *GOLDEN["batches"]]]
    assert found == [*wanted, ""]


def test_it_refuses_what_is_no_message(run: Run) -> None:
    """No topic or a long one, a long name, too many headers, a negative size, no room: the result is 0."""
    found = run(
        """
static char text[40000];
static struct bruce_header headers[257];

int main(void) {
    struct bruce_message one;
    struct bruce_batch batch;
    memset(text, 'x', sizeof text - 1);
    for (int i = 0; i < 257; i++) headers[i].name = "";
    memset(&one, 0, sizeof one);
    one.topic = "";
    printf("%zu\\n", bruce_encode(room, sizeof room, &one));
    one.topic = text;
    printf("%zu\\n", bruce_encode(room, sizeof room, &one));
    one.topic = "t";
    one.headers = headers;
    one.header_count = 257;
    printf("%zu\\n", bruce_encode(room, sizeof room, &one));
    one.header_count = 1;
    headers[0].name = text + sizeof text - 1 - 256;
    printf("%zu\\n", bruce_encode(room, sizeof room, &one));
    headers[0].name = "";
    headers[0].value = bytes("", -1);
    printf("%zu\\n", bruce_encode(room, sizeof room, &one));
    one.header_count = 0;
    one.value = bytes("", -1);
    printf("%zu\\n", bruce_encode(room, sizeof room, &one));
    one.value = bytes("v", 1);
    printf("%zu %zu\\n", bruce_encode(room, 33, &one), bruce_encode(room, 34, &one));
    bruce_batch_begin(&batch, room, 10 + 2 * 34 - 1);
    printf("%d ", bruce_batch_add(&batch, &one));
    printf("%d ", bruce_batch_add(&batch, &one));
    printf("%d %zu\\n", batch.count, bruce_batch_end(&batch));
    bruce_batch_begin(&batch, room, sizeof room);
    int added = 0;
    while (bruce_batch_add(&batch, &one)) added++;
    printf("%d\\n", added);
    bruce_batch_begin(&batch, room, 5);
    printf("%d\\n", bruce_batch_add(&batch, &one));
    return 0;
}
"""
    )
    assert found == ["0"] * 6 + ["0 34", "1 0 1 44", "256", "0", ""]
