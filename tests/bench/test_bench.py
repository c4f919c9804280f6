"""The benchmark measures all it promises; not how fast anything is."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def bench(*options):
    command = [sys.executable, HERE / "bench.py", "--tiny", "--store", "shared_memory", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_figure_has_a_row_of_ours(tmp_path):
    document = tmp_path / "benchmarks.md"
    begin, end = "<!-- what make bench measured -->", "<!-- the end of it -->"
    document.write_text(f"before\n{begin}\nearlier\n{end}\nafter\n")
    figures = bench("--write", document).split("\n### ")[1:]
    assert len(figures) == 26
    for figure in figures:
        assert "\n| **tensorcx" in figure, figure
    written = document.read_text()
    assert written.startswith("before\n") and written.endswith("\nafter\n")
    assert "earlier" not in written
    assert all(f"### {figure.splitlines()[0]}\n" in written for figure in figures)
