"""Four processes run a PyTorch model on ONE copy of its weights.

The calls that matter:

    bridge.put_state_dict(name, weights)     # once: the weights go into shared memory, under a name
    bridge.load(model, name)                 # in every worker: its parameters lie there, no copy

The model is a sentence encoder (MiniLM, a BERT of six layers) as a torch module. Its answers are
compared with those of minilm.py, which computes the same in NumPy. At the end the same is done with
four private copies, to compare memory and the time until a worker has its weights.
"""

import contextlib
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import minilm
import numpy as np
import torch
import torch.nn.functional as F
from checks import is_freed, memory, stats_at_rest, verdict, wait_until
from safetensors.torch import load_file
from torch import Tensor, nn

import tensorcx as cx
import torch_tensorcx as bridge

FILE = minilm.model_folder() / "model.safetensors"
UNUSED = ("pooler.*", "embeddings.position_ids")  # in the file, but not in the model below
WORKERS = 4
SENTENCES = [
    "A man is playing a guitar on stage.",
    "Someone performs music with a guitar.",
    "The stock market fell sharply today.",
    "Share prices dropped a lot this afternoon.",
]


# --- two ways to a worker's model -----------------------------------------------------------------


def shared_model(name: str) -> "Encoder":
    model = empty_model()
    bridge.load(model, name)
    return model


def private_model(_: str) -> "Encoder":
    model = empty_model()
    weights = load_file(FILE)  # maps the file; clone() reads it
    own = {key: weights[key].clone() for key in model.state_dict()}
    model.load_state_dict(own, assign=True)
    return model


def empty_model() -> "Encoder":
    """On the meta device: nothing is allocated, and nothing filled with random numbers."""
    with torch.device("meta"):
        return Encoder().eval()


# --- the model ------------------------------------------------------------------------------------

WIDTH, WORDS, POSITIONS = 384, 30522, 512


class Table(nn.Module):
    """nn.Embedding would be filled by normal_(): for that, on meta, PyTorch loads its compiler."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, WIDTH))


def norm() -> nn.LayerNorm:
    return nn.LayerNorm(WIDTH, eps=minilm.EPSILON)


class Layer(nn.Module):
    """Every token looks at the others, then thinks for itself; both add to what it was."""

    def __init__(self) -> None:
        super().__init__()
        heads = nn.ModuleDict({key: nn.Linear(WIDTH, WIDTH) for key in ("query", "key", "value")})
        seen = nn.ModuleDict({"dense": nn.Linear(WIDTH, WIDTH), "LayerNorm": norm()})
        self.attention = nn.ModuleDict({"self": heads, "output": seen})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(WIDTH, 4 * WIDTH)})
        self.output = nn.ModuleDict({"dense": nn.Linear(4 * WIDTH, WIDTH), "LayerNorm": norm()})

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        parts = (self.attention["self"][key](x) for key in ("query", "key", "value"))
        query, key, value = (p.unflatten(2, (minilm.HEADS, -1)).transpose(1, 2) for p in parts)
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        seen = self.attention["output"]["dense"](seen.transpose(1, 2).flatten(2))
        x = self.attention["output"]["LayerNorm"](x + seen)
        thought = self.output["dense"](F.gelu(self.intermediate["dense"](x)))
        result: Tensor = self.output["LayerNorm"](x + thought)
        return result


class Encoder(nn.Module):
    """Its keys are those of the file."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": Table(WORDS),
                "position_embeddings": Table(POSITIONS),
                "token_type_embeddings": Table(2),
                "LayerNorm": norm(),
            }
        )
        self.encoder = nn.ModuleDict(
            {"layer": nn.ModuleList(Layer() for _ in range(minilm.LAYERS))}
        )

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """One vector of length 1 per text; tokens int64 and mask bool, (texts, length)."""
        tables = self.embeddings
        x = F.embedding(tokens, tables["word_embeddings"].weight)
        x = x + tables["position_embeddings"].weight[: tokens.shape[1]]
        x = tables["LayerNorm"](x + tables["token_type_embeddings"].weight[0])
        for layer in self.encoder["layer"]:
            x = layer(x, mask[:, None, None, :])
        real = mask[:, :, None].to(x.dtype)
        return F.normalize((x * real).sum(1) / real.sum(1), dim=1)


# --- workers --------------------------------------------------------------------------------------


def work(pipe: Connection) -> None:
    """A worker's life: gets a model the way it is told, answers how long that took; serves."""
    torch.set_num_threads(1)
    tokenizer = minilm.Tokenizer(minilm.model_folder() / "vocab.txt")
    model: Encoder | None = empty_model()  # PyTorch imports now what it needs for that
    with contextlib.suppress(EOFError, ConnectionError), torch.inference_mode():
        while True:
            match pipe.recv():
                case "load", model_of, name:
                    start = time.perf_counter()
                    model = model_of(name)
                    pipe.send(time.perf_counter() - start)
                case "answer", sentences:
                    assert model is not None  # it was told to load one
                    pipe.send(model(*map(torch.from_numpy, tokenizer.batch(sentences))).numpy())
                case "forget":
                    model = None
                    pipe.send("forgotten")


class Worker:
    def __init__(self) -> None:
        # A fresh interpreter: what a fork inherits would blur the memory figures.
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, question: Any) -> Any:
        self.pipe.send(question)
        return self.pipe.recv()

    def end(self) -> None:
        self.pipe.close()
        self.process.join()


def run(
    workers: list[Worker], model_of: Callable[[str], Encoder], name: str
) -> tuple[list[Any], float, int]:
    """Everybody's answer, seconds until a worker had its weights (median), bytes of memory."""
    seconds = [worker.ask(("load", model_of, name)) for worker in workers]  # one after the other
    answers = [worker.ask(("answer", SENTENCES)) for worker in workers]
    processes = [worker.process.pid or 0 for worker in workers]
    used = sum(map(memory, (*processes, os.getpid(), cx.stats()["pid"])))
    for worker in workers:
        worker.ask("forget")
    return answers, statistics.median(seconds), used


# --- what is printed ------------------------------------------------------------------------------


def reference() -> Any:
    """The answer of the NumPy model."""
    tokenizer = minilm.Tokenizer(minilm.model_folder() / "vocab.txt")
    return minilm.embed(minilm.read_safetensors(FILE), *tokenizer.batch(SENTENCES))


def are_close(answers: list[Any], expected: Any) -> bool:
    return all(np.abs(answer - expected).max() < 1e-5 for answer in answers)


def main() -> int:
    before = stats_at_rest()
    name = f"examples/torch-{os.getpid()}"
    bundle = bridge.put_state_dict(name, load_file(FILE), skip=UNUSED, ephemeral=True)
    print(f"put {len(bundle)} tensors, {bundle.nbytes / 1e6:.1f} MB, as {name}")
    bundle.close()
    workers = [Worker() for _ in range(WORKERS)]
    try:
        shared, shared_seconds, shared_memory = run(workers, shared_model, name)
        cx.delete(name)
        all_is_free = is_freed(before["bytes"])
        wait_until(lambda: cx.stats()["warm_bytes"] <= before["warm_bytes"])  # else it counts below
        private, private_seconds, private_memory = run(workers, private_model, name)
    finally:
        for worker in workers:
            worker.end()
        with contextlib.suppress(cx.NotFound):
            cx.delete(name)  # still there only when something went wrong

    print(f"\n{WORKERS} workers, weights{'shared':>37}{'private':>12}")
    left, right = (f"{n / 1e6:.1f} MB" for n in (shared_memory, private_memory))
    print(f"{'memory of all processes (sum of Pss)':44}{left:>12}{right:>12}")
    left, right = (f"{n * 1e3:.1f} ms" for n in (shared_seconds, private_seconds))
    print(f"{'a worker has its model after (median)':44}{left:>12}{right:>12}\n")

    expected = reference()
    checks = {
        "all workers on shared weights answer as the NumPy model": are_close(shared, expected),
        "all workers on private weights do": are_close(private, expected),
        "the workers took at least two copies less": private_memory - shared_memory > 180e6,
        "all memory is free again": all_is_free,
    }
    return verdict(checks)


if __name__ == "__main__":
    sys.exit(main())
