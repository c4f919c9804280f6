"""The benchmark measures all it promises; not how fast anything is."""

import os
import subprocess
import sys
from pathlib import Path

import daemon

HERE = Path(__file__).parent
SUPPORT = Path(daemon.__file__).parent


def run(program, *options):
    command = [sys.executable, HERE / program, "--tiny", *options]
    paths = {"PYTHONPATH": f"{daemon.PACKAGES}:{SUPPORT}"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env=os.environ | paths
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def document(folder, begin):
    """One that an earlier run has written into."""
    path = folder / "benchmarks.md"
    path.write_text(f"before\n<!-- {begin} -->\nearlier\n<!-- the end of it -->\nafter\n")
    return path


def written(path, figures):
    text = path.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert "earlier" not in text
    return all(f"### {figure.splitlines()[0]}\n" in text for figure in figures)


def test_every_figure_has_a_row_of_ours(tmp_path):
    path = document(tmp_path, "what make bench measured")
    options = ("--store", "shared_memory", "--write", path)
    figures = run("bench.py", *options).split("\n### ")[1:]
    assert len(figures) == 26
    for figure in figures:
        assert "\n| **tensorcx" in figure, figure
    assert written(path, figures)


def test_every_curve_has_all_its_columns(tmp_path):
    path = document(tmp_path, "what make scale measured")
    figures = run("scale.py", "--write", path).split("\n### ")[1:]
    assert len(figures) == 11
    for figure in figures:
        table = [line for line in figure.splitlines() if line.startswith("|")]
        assert len(table) > 3 and len({line.count("|") for line in table}) == 1, figure
    assert written(path, figures)
