"""No memory wherever the extension, or the library below it, asks for some in a call."""

import sys
from pathlib import Path

import pytest
from accidents import OPTIONS, Accidents
from daemon import bare_environment
from helpers import SUPPORT, Process

HERE = Path(__file__).parent


@pytest.mark.parametrize("calls", ["calls", pytest.param("large-answers", marks=pytest.mark.slow)])
def test_each_allocation_of_each_call_fails_once(built, folder, start, calls):
    """python_calls.py does it, and says what it has done."""
    daemon = start(*OPTIONS, "--ticket-lease", "0.01")
    accidents = Accidents(built, folder, "python")
    environment = bare_environment(PYTHONMALLOC="malloc", **accidents.environment)
    environment["PYTHONPATH"] += f":{SUPPORT}:{HERE}"
    command = [sys.executable, HERE / "python_calls.py", daemon.path, accidents.path, calls]
    with Process(command, environment) as program:
        for name in iter(program.line, "end"):
            assert name.split()[1] != "1", f"{name}: nothing could fail"
        program.finish()
