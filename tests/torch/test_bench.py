"""The benchmark measures what it promises of the bridge; not how fast anything is."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench" / "bench.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_figure_has_a_row_of_ours():
    command = [sys.executable, BENCH, "--tiny", "--group", "torch", "--store", "torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=590)
    assert done.returncode == 0, done.stderr
    figures = done.stdout.split("\n### ")[1:]
    assert len(figures) == 12
    for figure in figures:
        assert "\n| **tensorcx" in figure, figure
