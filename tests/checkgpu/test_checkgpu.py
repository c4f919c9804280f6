"""The program of make check-gpu: it is known to work before it meets a device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import fakecuda
import pytest

PROGRAM = Path(__file__).with_name("checkgpu.py")
SUPPORT = fakecuda.d.ROOT / "tests" / "support"
NEED_MORE = {16, 17, 20, 22}  # PyTorch with CUDA, CuPy, the multi-process service


def run(*arguments: str, **environment: str):
    """What it says, line by line, and its exit status."""
    path = f"{fakecuda.d.PACKAGES}:{SUPPORT}"
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments],
        env=os.environ | {"PYTHONPATH": path, "CHECKGPU_QUICK": "1"} | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.stdout.splitlines(), done.returncode


def namespaces_are_allowed() -> bool:
    command = ["unshare", "--pid", "--ipc", "--fork", "true"]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.timeout(300)
def test_on_a_fake_device_every_item_passes_or_says_what_it_needs():
    with fakecuda.machine():
        lines, code = run()
    said = {line["item"]: line for line in map(json.loads, lines)}
    assert list(said) == list(range(1, 25))
    failed = {number: line["why"] for number, line in said.items() if line["result"] == "failed"}
    assert failed == {} and code == 0
    not_run = {number: line["why"] for number, line in said.items() if line["result"] == "not run"}
    assert set(not_run) == NEED_MORE | (set() if namespaces_are_allowed() else {18})
    assert all("installed" in why or "sees no CUDA" in why for why in not_run.values()), not_run


def test_without_a_device_each_item_says_so_by_name():
    lines, code = run(LD_LIBRARY_PATH=str(fakecuda.FOLDER / "broken"))
    assert lines.pop() == "no device: nothing was checked"
    said = [json.loads(line) for line in lines]
    assert [line["item"] for line in said] == list(range(1, 25))
    assert {(line["result"], line["why"]) for line in said} == {("not run", "no device")}
    assert all(line["name"] for line in said)
    assert code == 0


def test_an_item_that_fails_is_seen():
    with fakecuda.machine():
        lines, code = run("1", "14", FAKECUDA_FAIL="cuMemSetAccess:1:801")
    passed, failed = map(json.loads, lines)
    assert passed["result"] == "passed"
    assert failed["result"] == "failed" and "cuMemSetAccess: CUDA_ERROR_NOT_S" in failed["why"]
    assert code == 1
