"""The examples with PyTorch run, say the truth and leave nothing."""

from example import run_example


def test_torch_bridge():
    said = run_example("torch_bridge.py").splitlines()
    assert said == [
        "one process: the same memory both ways, and linear as PyTorch has it",
        "two processes: the other one wrote, this one has [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]",
    ]


def test_torch_workers():
    said = run_example("torch_workers.py")
    assert "put 101 tensors, 90.3 MB" in said
    assert said.count("\nyes ") == 4
