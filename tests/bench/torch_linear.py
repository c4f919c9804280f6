"""What `linear` costs beyond F.linear. Run by .venv-torch; prints times of single calls, as JSON.

    PYTHONPATH=build/python:$BRIDGE .venv-torch/bin/python tests/bench/torch_linear.py ROUNDS

{"1x1": {"F.linear": [nanoseconds, ...], "tensorcx": [...], ...}, ...}: a number for each round.
"""

import json
import sys
from time import perf_counter_ns

import torch
import torch.nn.functional as F

import torch_tensorcx as bridge

CALLS = {1: 1000, 64: 500, 1024: 1}  # a round; of square matrices with this many rows


def calls(function, x, w, count: int) -> float:
    begin = perf_counter_ns()
    for _ in range(count):
        function(x, w)
    return (perf_counter_ns() - begin) / count


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    measured = {}
    for rows, count in CALLS.items():
        x, w = torch.randn(rows, rows), torch.randn(rows, rows)
        contenders = {
            "F.linear": (F.linear, w),
            "tensorcx": (bridge.linear, w),
            "tensorcx, the weight a tensorcx tensor": (bridge.linear, bridge.from_torch(w)),
        }
        times = measured[f"{rows}x{rows}"] = {who: [] for who in contenders}
        for _ in range(rounds):
            for who, (function, weight) in contenders.items():
                times[who].append(calls(function, x, weight, count))
    print(json.dumps(measured))


if __name__ == "__main__":
    main(int(sys.argv[1]))
