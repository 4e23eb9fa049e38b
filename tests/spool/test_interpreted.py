"""Without the JIT every kernel is plain Python, and gives the same results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SELECTION = [
    "tests/spool/test_golden.py",
    "tests/spool/format/test_block_sums.py::test_order_does_not_matter",
    "tests/spool/format/test_wire.py",
    "tests/spool/shared/test_ledger.py::test_more_topics_than_rows_are_counted_by_reason",
    "tests/spool/storage/test_ab_slots.py::test_a_damaged_bank_falls_back_to_the_one_before",
    "tests/spool/format/test_frame.py::test_swapped_frames_break_the_chain",
    "tests/spool/format/test_frame.py::test_a_limit_inside_the_last_frame_cuts_it",
    "tests/spool/format/test_scan.py::test_damage_is_skipped_and_counted",
    "tests/spool/test_torn.py::test_the_log_goes_on_over_a_torn_frame",
    "tests/ingest/worker/test_burst.py::test_every_malformed_case_is_counted_under_its_own_reason",
    "tests/ingest/worker/test_burst.py::test_datagrams_over_the_limit_are_truncated_and_never_stored",
    "tests/ingest/worker/test_salvage.py::test_received_but_not_stored",
    "tests/ingest/worker/test_salvage.py::test_killed_between_the_ledger_and_the_next_arm",
]


@pytest.mark.long
def test_the_kernels_give_the_same_results_without_the_jit() -> None:
    """A selection of the tests passes with NUMBA_DISABLE_JIT=1: on golden bytes, so the same results."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SELECTION]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:]
