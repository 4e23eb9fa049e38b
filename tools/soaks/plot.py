"""The picture of a soak: memory, descriptors, and the outcomes of messages, over its minutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

from tools.bruce_process import WORKERS
from tools.soaks.samples import Sample

mpl.use("Agg")

import matplotlib.pyplot as plt

_COLOURS = dict(zip(WORKERS, ("#666666", "#1f77b4", "#2ca02c", "#d62728"), strict=True))


def draw(path: Path, samples: Sequence[Sample], minutes: Sequence[Mapping[str, int]]) -> None:
    """Write the PNG. A line breaks where a process ended and its successor began."""
    figure, (memory, descriptors, messages) = plt.subplots(3, 1, figsize=(9, 8), sharex=True)
    for role, pid in sorted({(sample.role, sample.pid) for sample in samples}):
        life = [sample for sample in samples if (sample.role, sample.pid) == (role, pid)]
        at = [sample.at_s / 60 for sample in life]
        memory.plot(at, [sample.memory_kib / 1024 for sample in life], color=_COLOURS[role], lw=1)
        descriptors.plot(at, [sample.descriptors for sample in life], color=_COLOURS[role], lw=1)
    for role, colour in _COLOURS.items():
        memory.plot([], [], color=colour, label=role)
    numbers = range(1, len(minutes) + 1)
    for name, style in (("delivered", "-"), ("discarded", "--"), ("backlog", ":")):
        messages.plot(numbers, [row[name] / 1000 for row in minutes], f"k{style}", lw=1, label=name)
    memory.set_ylabel("own memory, MiB")
    descriptors.set_ylabel("descriptors")
    messages.set_ylabel("thousand messages")
    messages.set_xlabel("minutes")
    for axes in (memory, descriptors, messages):
        axes.set_ylim(bottom=0, top=1.25 * axes.get_ylim()[1])
    memory.legend(ncols=4, fontsize="small", loc="upper right")
    messages.legend(ncols=3, fontsize="small", loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
