"""What only a device can show: 24 items, one line of JSON each (make check-gpu).

    checkgpu.py [N]...

Each item runs in a program of its own, so that one which loses its CUDA context or dies takes
nothing with it. A line has "item", "name", "result" (passed, failed, not run), "figures" or "why".
"""

import argparse
import json
import subprocess
import sys

import cuda_driver
import item
import items_driver  # noqa: F401  each adds its items
import items_frameworks  # noqa: F401
import items_places  # noqa: F401
import items_tensors  # noqa: F401
import peer

TIMEOUT = 600  # of an item, in seconds


def run_apart(found: item.Item) -> dict:
    said = {"item": found.number, "name": found.name, "result": "failed"}
    command = [sys.executable, peer.PROGRAM, "--item", str(found.number)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=TIMEOUT, check=False)
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return said | {"why": f"not done after {TIMEOUT} s"}
    except (IndexError, json.JSONDecodeError):
        return said | {"why": f"its program ended with {done.returncode}"}


def run_all(numbers: list[int]) -> int:
    is_visible = cuda_driver.is_visible()
    results = []
    for found in (item.items[number] for number in numbers or sorted(item.items)):
        if is_visible:
            said = run_apart(found)
        else:
            why = "no device"
            said = {"item": found.number, "name": found.name, "result": "not run", "why": why}
        print(json.dumps(said), flush=True)
        results.append(said["result"])
    if not is_visible:
        print("no device: nothing was checked", flush=True)
    return "failed" in results


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("items", type=int, nargs="*", metavar="N")
    parser.add_argument("--item", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.peer:
        peer.run(*asked.peer)
    elif asked.item:
        print(json.dumps(item.result_of(item.items[asked.item])), flush=True)
    else:
        return run_all(asked.items)
    return 0


if __name__ == "__main__":
    sys.exit(main())
