"""Which small files become one."""

from __future__ import annotations

from pipeline.archive.files import FULL_BYTES, File, choose_bins


def test_bins_hold_what_fits() -> None:
    """Files of one directory only, large ones left alone, none merged by itself, and no bin over its size."""
    mib = 1 << 20
    sizes = [60, 60, 60, 64, 1]
    files = [File(f"topic=a/date=d/{i}", size * mib) for i, size in enumerate(sizes)]
    bins = choose_bins([*files, File("topic=b/date=d/0", 1)])
    assert [[file.name[-1] for file in chosen] for chosen in bins] == [["0", "1"], ["2", "4"]]
    assert all(sum(file.bytes for file in chosen) <= FULL_BYTES for chosen in bins)
