"""PyTorch tensors on memory that tensorcx knows: in this process, then in two."""

import os
import subprocess
import sys

import torch

import tensorcx as cx
import torch_tensorcx as bridge


def one_process() -> None:
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    w = torch.ones((4, 3))
    shared = bridge.from_torch(x)
    assert bridge.to_torch(shared).data_ptr() == x.data_ptr()
    result = bridge.linear(x, w)
    torch.testing.assert_close(result, torch.nn.functional.linear(x, w))
    print("one process: the same memory both ways, and linear as PyTorch has it")


def second_process(name: str) -> None:
    x = bridge.to_torch(cx.get(name))  # the same memory, no copy
    x.mul_(10)


def two_processes() -> None:
    name = f"examples/torch-bridge-{os.getpid()}"
    x = bridge.to_torch(cx.put(name, torch.arange(6, dtype=torch.float32)))
    subprocess.run([sys.executable, __file__, name], check=True)
    print("two processes: the other one wrote, this one has", x.tolist())
    cx.delete(name)


if __name__ == "__main__":
    if sys.argv[1:]:
        second_process(sys.argv[1])
    else:
        one_process()
        two_processes()
