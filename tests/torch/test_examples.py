"""The examples with PyTorch run, say the truth and leave nothing."""

import subprocess
import sys

import daemon as d


def run(name, *arguments):
    """Runs an example as a user would, to its end; what it printed."""
    command = [sys.executable, d.ROOT / "examples" / name, *arguments]
    done = subprocess.run(command, cwd=d.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def test_torch_bridge():
    said = run("torch_bridge.py").splitlines()
    assert said == [
        "one process: the same memory both ways, and linear as PyTorch has it",
        "two processes: the other one wrote, this one has [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]",
    ]


def test_torch_workers():
    said = run("torch_workers.py")
    assert "put 101 tensors, 90.3 MB" in said
    assert said.count("\nyes ") == 4
