"""Processes that see other process ids, and the multi-process service."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import cuda_driver as cuda
from item import expect, item, need, running_daemon
from items_driver import code_of, get_ipc, open_ipc
from peer import PROGRAM, Peer

import tensorcx as cx

ELSEWHERE = ("unshare", "--pid", "--ipc", "--fork", "--kill-child")


@item(18, "namespaces of process ids: mapped memory, and cuIpc")
def namespaces():
    check = [*ELSEWHERE, "true"]
    need(shutil.which("unshare") and subprocess.run(check, check=False).returncode == 0,
         "this user may not make namespaces")  # fmt: skip
    with running_daemon():
        cx.put("x", cx.full((8,), 7, "uint8", device="cuda:0"))
        with Peer(gets_x, prefix=ELSEWHERE) as inside:
            expect(inside.hear() == [7] * 8, "a tensor is something else in a namespace")
    return {
        "ipc_from_outside": ipc_error(),
        "ipc_between_two_inside": ipc_error(prefix=ELSEWHERE),
    }


def gets_x(link):
    link.say(cx.get("x").cpu().numpy().tolist())


def ipc_error(prefix=()) -> int:
    """The error, or 0, of opening a handle in a namespace; both may have process id 1."""
    with Peer(exports_ipc, prefix=prefix) as exporter, Peer(opens, prefix=ELSEWHERE) as opener:
        opener.say(exporter.hear())
        code = opener.hear()
        exporter.say()
    return code


def exports_ipc(link):
    with cuda.current():
        link.say(get_ipc(cuda.allocate(2 << 20)))
        link.hear()


def opens(link):
    with cuda.current():
        handle = link.hear()
        link.say(code_of(lambda: open_ipc(handle)))


@item(22, "items 7, 8 and 12 under the multi-process service")
def with_mps():
    control = shutil.which("nvidia-cuda-mps-control")
    need(control, "nvidia-cuda-mps-control is not installed")
    with tempfile.TemporaryDirectory(prefix="checkgpu-mps-") as folder:
        environment = os.environ | {
            "CUDA_MPS_PIPE_DIRECTORY": folder,
            "CUDA_MPS_LOG_DIRECTORY": folder,
        }
        started = subprocess.run([control, "-d"], env=environment, check=False)
        need(started.returncode == 0, "the multi-process service does not start")
        try:
            results = {number: run_item(number, environment) for number in (7, 8, 12)}
        finally:
            subprocess.run([control], input=b"quit\n", env=environment, check=False)
    failed = [number for number, said in results.items() if said["result"] != "passed"]
    expect(not failed, f"items {failed}: {results}")
    return results


def run_item(number: int, environment: dict) -> dict:
    command = [sys.executable, PROGRAM, "--item", str(number)]
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False).stdout
    return json.loads(said.splitlines()[-1]) if said else {"result": "failed", "why": "it died"}
