"""Runs the programs in examples/ as a user would."""

import subprocess
import sys

import daemon as d

EXAMPLES = d.ROOT / "examples"


def run_example(program: str, *arguments, **options) -> str:
    """To its end, which must be good and without a word on stderr; what it printed."""
    command = [sys.executable, EXAMPLES / program, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=d.ROOT, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "", done.stderr
    return done.stdout
