"""Bursts of messages as an intake stores them, made in place: no Python for a message.

A template is the body of a frame: lengths, uids, pids, and datagrams in the format of tools.payload. The load
generator's own loop writes in place the fields that change with each use; then the body is copied into the
mapped segment, and its head is stored. A few templates, by turns, have the mix of the whole.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from spool.format.frame import BURST, POSITION, SEQUENCE, finish, padded
from spool.format.scan import digest_address
from spool.format.segment_format import HEAD_BYTES, PIDS, UIDS
from spool.format.wire import encode
from spool.log.writer import Writer
from spool.native.kernel import kernel
from spool.native.memory import address_of, copy
from tools import load_kernel as hot
from tools.payload import KEY_BYTES, LEAST_BYTES, blank_value

TEMPLATES = 16
BURSTS = (50, 400)
"""Messages of a template."""
VALUE_MEDIAN, VALUE_SIGMA, VALUE_MOST = 180, 0.7, 4000
"""Bytes of a value: log-normal, like those of many programs together."""
KEYED, WITH_KEY = 0.6, 0.5
"""Shares of messages with a partition key, and of the others with a key of their own."""
KEYS = 2000
"""Partition keys of each topic."""
_FIXED_BYTES = 12
"""Of a datagram, before the topic's name."""


class Template:
    """One body, and the places that the loop writes to. `plan` int64[count, PLAN_FIELDS]."""

    def __init__(self, topics: Sequence[str], rng: random.Random) -> None:
        count = rng.randint(*BURSTS)
        made = [_message(topics, rng) for _ in range(count)]
        sizes = [len(data) for _, _, _, data in made]
        columns = np.zeros((3, count), "<u4")
        columns[0], columns[1], columns[2] = sizes, rng.randint(1000, 1020), rng.randint(2, 30_000)
        self.count = count
        self.body = np.frombuffer(columns.tobytes() + b"".join(data for *_, data in made), np.uint8).copy()
        ends = columns.nbytes + np.cumsum(sizes)
        self.plan = np.zeros((count, hot.PLAN_FIELDS), np.int64)
        for row, (keyed, key_bytes, topic_bytes, data), end in zip(self.plan, made, ends, strict=True):
            timestamp = _FIXED_BYTES + 4 * keyed + topic_bytes
            key = timestamp + 12
            value = key + key_bytes + 4
            at = address_of(self.body) + int(end) - len(data)
            row[: hot.TRAITS] = at, timestamp, key, value, len(data) - value, keyed, key_bytes


def _message(topics: Sequence[str], rng: random.Random) -> tuple[int, int, int, bytes]:
    """(has a partition key, bytes of its own key, bytes of the topic, datagram)."""
    keyed = rng.random() < KEYED
    key_bytes = KEY_BYTES if keyed or rng.random() < WITH_KEY else 0
    topic = rng.choice(topics).encode()
    size = int(rng.lognormvariate(np.log(VALUE_MEDIAN), VALUE_SIGMA))
    value = blank_value(min(max(size, LEAST_BYTES), VALUE_MOST))
    data = encode(topic, value, key=bytes(key_bytes), partition_key=0 if keyed else None)
    return int(keyed), key_bytes, len(topic), data


@kernel
def write_burst(
    job: npt.NDArray[np.int64],
    plan: npt.NDArray[np.int64],
    count: int,
    first: int,
    sent_ns: int,
    step_ns: int,
) -> None:
    """Number the first `count` messages of a template from `first` on."""
    for i in range(count):
        hot.write_message(job, plan[i], first + i, sent_ns + i * step_ns)


@kernel
def copy_body(target: int, source: int, length: int) -> None:
    """Copy bytes from one address to another."""
    copy(target, source, length)


class Frames:
    """The frames of one host, whose messages are those of one sender."""

    def __init__(self, topics: Sequence[str], sender: int, seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311  (a load, not a secret)
        self._templates = [Template(topics, rng) for _ in range(TEMPLATES)]
        self._job = np.zeros(hot.JOB_FIELDS, np.int64)
        self._job[hot.SENDER], self._job[hot.KEYS] = sender, KEYS
        self._made = 0

    def largest(self) -> int:
        """Bytes of the largest frame."""
        return max(HEAD_BYTES + padded(len(template.body)) for template in self._templates)

    def append(self, writer: Writer, left: int, sent_ns: int, step_ns: int) -> tuple[int, int, int]:
        """Write one frame of `left` messages at most: (offset, first sequence, messages).

        The live segment has room for it. Messages are sent one each `step_ns`, from `sent_ns` on.
        """
        template = self._templates[self._made % TEMPLATES]
        # A part of a template is another body: the last frame is made with exactly the wanted messages.
        count = min(left, template.count)
        if count < template.count:
            template = _cut(template, count)
        self._made += 1
        offset, first = int(writer.tail[POSITION]), int(writer.tail[SEQUENCE])
        write_burst(self._job, template.plan, count, first, sent_ns, step_ns)
        size = len(template.body)
        copy_body(writer.base + offset + HEAD_BYTES, address_of(template.body), size)
        received_ns = sent_ns + count * step_ns
        burst = int(writer.tail[BURST]) + 1
        finish(writer.base, writer.tail, count, 0, size, 0, UIDS | PIDS, burst, received_ns, digest_address())
        writer.publish()
        return offset, first, count


def _cut(template: Template, count: int) -> Template:
    """The first messages of a template."""
    columns = template.body[: 12 * template.count].view("<u4").reshape(3, -1)[:, :count]
    start = 12 * template.count
    end = start + int(columns[0].sum())
    made = object.__new__(Template)
    made.count = count
    made.body = np.concatenate(
        [np.ascontiguousarray(columns).view(np.uint8).ravel(), template.body[start:end]]
    )
    made.plan = template.plan[:count].copy()
    moved = address_of(made.body) + 12 * count - (address_of(template.body) + start)
    made.plan[:, hot.ADDRESS] += moved
    return made
