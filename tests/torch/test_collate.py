"""collate: what default_collate makes, in shared memory; batches of DataLoader workers."""

import collections
import multiprocessing
import os
import signal

import daemon as d
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

import tensorcx as cx
import torch_tensorcx as bridge

pytestmark = pytest.mark.usefixtures("installed")

MiB = 1 << 20
Point = collections.namedtuple("Point", "x y")


class Image(torch.Tensor):
    """A class of the user's own."""


def leaves(batch):
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, str | bytes):
        return []
    parts = batch.values() if isinstance(batch, dict) else batch
    return [leaf for part in parts for leaf in leaves(part)]


def assert_same(a, b):
    assert type(a) is type(b)
    torch.testing.assert_close(leaves(a), leaves(b), rtol=0, atol=0, equal_nan=True)


# ------------------------------------------------------------------------------------ one process

BATCHES = {
    "tensors": [torch.arange(6.0).view(2, 3), torch.ones(2, 3)],
    "scalars": [torch.tensor(1), torch.tensor(2)],
    "empty": [torch.empty(0, 4), torch.empty(0, 4)],
    "one": [torch.ones(3)],
    "not contiguous": [torch.arange(6.0).view(2, 3).t(), torch.ones(6, 2)[::2]],
    "conjugated": [torch.tensor([1 + 2j]).conj(), torch.tensor([3 + 4j])],
    "bfloat16": [torch.ones(3, dtype=torch.bfloat16)] * 2,
    "float8": [torch.ones(3).to(torch.float8_e5m2)] * 2,
    "bool": [torch.tensor([True, False])] * 2,
    "parameters": [torch.nn.Parameter(torch.ones(2), requires_grad=False)] * 2,
    "subclass": [torch.ones(2).as_subclass(Image)] * 2,
    "arrays": [np.arange(3), np.ones(3, int)],
    "array scalars": [np.float32(1), np.float32(2)],
    "numbers": [1, 2],
    "floats": [1.0, float("nan")],
    "bools": [True, False],
    "pairs": [(torch.ones(2), 1), (torch.zeros(2), 2)],
    "nested": [{"a": [torch.ones(2), 0.5], "b": Point(np.zeros(2), {"c": 1})}] * 3,
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_it_makes_what_default_collate_makes_in_shared_memory(batch):
    made = bridge.collate(batch)
    assert_same(made, default_collate(batch))
    for leaf in leaves(made):
        flat = leaf.as_subclass(torch.Tensor).view(torch.uint8)
        assert cx.is_shared(flat) or not leaf.numel()


LEFT_ALONE = {
    "strings": ["a", "b"],
    "two dtypes": [torch.ones(2), torch.ones(2, dtype=torch.int32)],
}


@pytest.mark.parametrize("batch", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_it_leaves_the_rest_to_default_collate(batch):
    made, default = bridge.collate(batch), default_collate(batch)
    assert type(made) is type(default) and str(made) == str(default)


def test_it_follows_the_default_device():
    with torch.device("meta"):
        assert bridge.collate([1, 2]).is_meta
        assert cx.is_shared(bridge.collate([torch.ones(2, device="cpu")]))


def test_gradients_flow_as_with_default_collate():
    x = torch.ones(2, requires_grad=True)
    bridge.collate([x, x]).sum().backward()
    assert x.grad.tolist() == [2, 2]


WRONG = {
    "shapes": [torch.ones(3), torch.ones(4)],
    "array shapes": [np.ones(3), np.ones(4)],
    "lengths": [[1, 2], [1]],
    "sparse": [torch.eye(2).to_sparse()] * 2,
    "objects": [object()] * 2,
    "texts": [np.array(["a"])] * 2,
}


@pytest.mark.parametrize("batch", WRONG.values(), ids=WRONG)
def test_errors_are_those_of_default_collate(batch):
    with pytest.raises((RuntimeError, TypeError)) as theirs:
        default_collate(batch)
    with pytest.raises(type(theirs.value)) as ours:
        bridge.collate(batch)
    assert str(ours.value) == str(theirs.value)


def test_users_own_kinds_are_known(monkeypatch):
    kinds = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(kinds, range, lambda batch, **_: "ranges")
    assert bridge.collate([range(2), range(3)]) == "ranges"


# ---------------------------------------------------------------------------------------- workers


class Numbered(Dataset):
    def __init__(self, count=12):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return {"x": torch.full((3, 4), float(i)), "y": i}


class Stream(IterableDataset):
    def __iter__(self):
        worker = torch.utils.data.get_worker_info().id
        return (torch.tensor([worker, i]) for i in range(4))


class Rows(Dataset):
    """Parts of one tensor in shared memory."""

    def __init__(self, table):
        self.table = table

    def __len__(self):
        return len(self.table)

    def __getitem__(self, i):
        return self.table[i]


def loader(dataset, **options):
    options.setdefault("multiprocessing_context", "fork")
    options.setdefault("collate_fn", bridge.collate)
    options.setdefault("num_workers", 2)
    return DataLoader(dataset, timeout=d.DEADLINE, **options)


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_batches_come_by_reference(method):
    options = {"persistent_workers": True, "prefetch_factor": 3}
    workers = 2 if method == "fork" else 1  # others import PyTorch again
    batches = loader(
        Numbered(), batch_size=4, num_workers=workers, multiprocessing_context=method, **options
    )
    for _ in range(2):
        firsts = []
        for batch in batches:
            assert cx.is_shared(batch["x"]) and cx.is_shared(batch["y"])
            assert batch["x"][:, 1, 2].tolist() == batch["y"].tolist()
            firsts.append(batch["y"][0].item())
        assert firsts == [0, 4, 8]


def test_an_iterable_dataset():
    batches = list(loader(Stream(), batch_size=2))
    assert all(map(cx.is_shared, batches))
    assert sorted(torch.cat(batches).tolist()) == [[w, i] for w in (0, 1) for i in range(4)]


def test_samples_that_are_views_are_the_memory_itself():
    table = bridge.to_torch(cx.zeros((4, 3), "float32"))
    rows = list(loader(Rows(table), batch_size=None, collate_fn=None))
    table[2] = 7
    assert [row.tolist() for row in rows] == [[0] * 3, [0] * 3, [7] * 3, [0] * 3]
    for row in rows:
        row.add_(1)
    assert table[:, 0].tolist() == [1, 1, 8, 1]


def test_batches_of_default_collate_are_torchs_own():
    table = bridge.to_torch(cx.zeros((4, 3), "float32"))
    (batch,) = loader(Rows(table), batch_size=4, collate_fn=None)
    assert batch.is_shared() and not cx.is_shared(batch)


@pytest.mark.filterwarnings("ignore:.*pin_memory")
def test_with_a_pinning_thread_and_nothing_to_pin_for():
    for batch in loader(Numbered(), batch_size=4, pin_memory=True):
        assert cx.is_shared(batch["x"])


# ------------------------------------------------------------------------------------- early ends


class Fragile(Numbered):
    def __getitem__(self, i):
        if i == 33:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


@pytest.mark.parametrize("forgetful", ["5"], indirect=True)
def test_batches_that_nobody_takes_are_free_after_the_lease(forgetful):
    batches = iter(loader(Numbered(64), batch_size=4, prefetch_factor=4))
    assert next(batches)["y"].tolist() == [0, 1, 2, 3]
    d.settle(lambda: cx.stats()["tickets"], "batches made ahead")
    del batches
    with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed by signal"):
        for batch in loader(Fragile(64), batch_size=4, prefetch_factor=4):
            assert cx.is_shared(batch["x"])
    del batch
    assert forgetful.settle(clients=1)["bytes"]

    def is_taken_back():
        try:
            return cx.empty(64 * MiB, "uint8").nbytes == 64 * MiB
        except cx.OutOfMemory:
            return False

    d.settle(is_taken_back, "the end of the lease")
    forgetful.settle(tickets=0, bytes=0)


def test_no_memory_for_a_batch_is_an_error_at_the_trainer():
    huge = [torch.empty(1).expand(1 << 40)]
    batches = iter(loader(huge, batch_size=1))
    with pytest.raises(cx.OutOfMemory, match="4398046511104"):
        next(batches)
    batches._shutdown_workers()  # in the garbage collector it takes 5 seconds a worker
