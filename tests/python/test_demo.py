"""The examples: the model they compute with, and that they run, say the truth and leave nothing."""

import json
import math
import os
import random
import re
import subprocess
import sys
from types import SimpleNamespace

import daemon as d
import numpy as np
import pytest
from example import EXAMPLES, run_example

import tensorcx as cx

sys.path.insert(0, str(EXAMPLES))

import checks
import embeddings
import minilm
from workers import Pool

# --- the reader of safetensors files --------------------------------------------------------------

VALID = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "I64", "shape": [], "data_offsets": [24, 32]},
    "none": {"dtype": "F16", "shape": [0, 7], "data_offsets": [32, 32]},
    "__metadata__": {"format": "np"},
}
DATA = np.arange(6, dtype="<f4").tobytes() + np.int64(-5).tobytes()


def file_of(header, data: bytes = DATA) -> bytes:
    """A file's bytes; a header that is not bytes already becomes JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def valid_but(**changes) -> bytes:
    """The valid file, with the fields of tensor "a" changed."""
    return file_of(VALID | {"a": VALID["a"] | changes})


@pytest.fixture
def read(tmp_path):
    """Reads a file that has these bytes."""

    def read_bytes(content: bytes):
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        return minilm.read_safetensors(path)

    return read_bytes


def test_reader_gives_what_the_header_describes(read):
    tensors = read(file_of(VALID))
    assert list(tensors) == ["a", "b", "none"]
    np.testing.assert_array_equal(tensors["a"], np.arange(6, dtype=np.float32).reshape(2, 3))
    assert tensors["b"] == -5 and tensors["b"].shape == () and tensors["b"].dtype == np.int64
    assert tensors["none"].shape == (0, 7) and tensors["none"].dtype == np.float16


HOSTILE = {
    "empty file": (b"", "shorter than the length field"),
    "half a length": (b"\x08\0\0", "shorter than the length field"),
    "header longer than the file": (b"\xff" * 8 + b"{}", "header of 18446744073709551615 bytes"),
    "no JSON": (file_of(b"tensors!"), "not a valid safetensors file"),
    "no UTF-8": (file_of(b'{"\xff": 1}'), "not a valid safetensors file"),
    "JSON without end": (file_of(b"[" * 200_000), "not a valid safetensors file"),
    "huge number": (file_of(b"1" * 100_000), "not a valid safetensors file"),
    "a list": (file_of([VALID]), "not a JSON object"),
    "a name twice": (file_of(b'{"a": {}, "a": {}}'), "twice"),
    "entry is a number": (file_of({"a": 1}), "needs dtype, shape and data_offsets"),
    "no shape": (file_of({"a": {"dtype": "F32", "data_offsets": [0, 32]}}), "needs dtype, shape"),
    "three offsets": (valid_but(data_offsets=[0, 24, 32]), "needs dtype, shape"),
    "negative dimensions": (valid_but(shape=[-2, -3]), "integers from 0 up"),
    "fractional dimension": (valid_but(shape=[2.0, 3]), "integers from 0 up"),
    "true is no dimension": (valid_but(shape=[True, 6]), "integers from 0 up"),
    "text as dimension": (valid_but(shape=["2", 3]), "integers from 0 up"),
    "negative offset": (valid_but(data_offsets=[-24, 0]), "integers from 0 up"),
    "unknown dtype": (valid_but(dtype="F31"), "is not one of F16"),
    "shape larger than the range": (valid_but(shape=[2, 4]), "does not fill bytes 0 to 24"),
    "shape that overflows": (valid_but(shape=[2**62, 2**62, 6]), "does not fill"),
    "offsets in reverse": (valid_but(data_offsets=[24, 0]), "does not fill"),
    "offsets past the end": (valid_but(shape=[2, 30], data_offsets=[0, 240]), "does not fill"),
    "overlap": (valid_but(data_offsets=[8, 32]), "overlap or leave a hole"),
    "hole": (file_of({"b": VALID["b"]}), "overlap or leave a hole"),
    "bytes after the last": (file_of(VALID, DATA + b"!"), "end at byte 32, the data at 33"),
    "data cut short": (file_of(VALID, DATA[:-1]), "does not fill"),
}


@pytest.mark.parametrize("content, text", HOSTILE.values(), ids=HOSTILE.keys())
def test_reader_refuses(read, content, text):
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        read(content)
    assert "model.safetensors is not a valid safetensors file" in str(caught.value)


def test_reader_reads_or_refuses_whatever_bytes_are_damaged(read):
    rng = random.Random(1)
    intact = file_of(VALID)
    refused = 0
    for _ in range(2000):
        content = bytearray(intact)
        for _ in range(rng.randint(1, 3)):
            content[rng.randrange(len(content) - len(DATA))] = rng.randrange(256)
        try:
            tensors = read(bytes(content))
        except ValueError:
            refused += 1
        else:
            assert sum(tensor.nbytes for tensor in tensors.values()) == len(DATA)
    assert refused > 1000


# --- what examples measure ------------------------------------------------------------------------


def test_examples_wait_for_a_daemon_at_rest_but_not_for_ever(monkeypatch):
    passed = iter(range(1000))
    clock = SimpleNamespace(sleep=lambda seconds: None, monotonic=lambda: next(passed))
    monkeypatch.setattr(checks, "time", clock)
    states = [{"committed_bytes": n, "socket": "x.sock"} for n in (1, 2, 2)]
    monkeypatch.setattr(cx, "stats", iter(states).__next__)
    assert checks.stats_at_rest() is states[2]
    busy = ({"committed_bytes": n, "socket": "x.sock"} for n in range(1000))
    monkeypatch.setattr(cx, "stats", busy.__next__)
    with pytest.raises(SystemExit, match=r"x.sock does not come to rest.*TENSORCX_SOCKET"):
        checks.stats_at_rest()


# --- the model ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file():
    return minilm.model_folder() / "model.safetensors"


@pytest.fixture(scope="module")
def weights(file):
    return minilm.read_safetensors(file)


@pytest.fixture(scope="module")
def tokenizer():
    return minilm.Tokenizer(minilm.model_folder() / "vocab.txt")


# From the tokenizers library with the tokenizer.json beside the vocabulary.
TOKENS = {
    "": [],
    "Hello, World!": [7592, 1010, 2088, 999],
    "Crème brûlée à la carte": [13675, 21382, 7987, 9307, 2063, 1037, 2474, 11122, 2063],
    "don't tokenize": [2123, 1005, 1056, 19204, 4697],
    "東京 2024": [1879, 1755, 16798, 2549],
    "ΣΑΣ": [1173, 14608, 29733],
    "🙂 ok": [100, 7929],
    "a\tb\u00a0c\x00d\ufffd\u200be": [1037, 1038, 3729, 2063],
    "x" * 100: [22038, *[20348] * 49],
    "x" * 101: [100],
}


@pytest.mark.parametrize("text", TOKENS)
def test_tokens_are_those_of_the_reference(tokenizer, text):
    assert tokenizer(text) == [101, *TOKENS[text], 102]


def test_vocabulary_is_that_of_the_tokenizer_file(tokenizer):
    reference = json.loads((minilm.model_folder() / "tokenizer.json").read_text(encoding="utf-8"))
    assert tokenizer.vocabulary == reference["model"]["vocab"]


def test_long_text_is_cut_and_short_text_filled_up(tokenizer):
    tokens, mask = tokenizer.batch(["hello " * 1000, "hello"])
    assert tokens.shape == mask.shape == (2, minilm.MAX_TOKENS)
    assert tokens[0].tolist() == [101, *[7592] * (minilm.MAX_TOKENS - 2), 102]
    assert tokens[1].tolist() == [101, 7592, 102] + [0] * (minilm.MAX_TOKENS - 3)
    assert mask.sum(axis=1).tolist() == [minilm.MAX_TOKENS, 3]


THREE = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]


def test_similarities_are_the_published_ones(weights, tokenizer):
    vectors = minilm.embed(weights, *tokenizer.batch(THREE))
    assert vectors.dtype == np.float32
    published = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    np.testing.assert_allclose(vectors @ vectors.T, published, rtol=0, atol=0.00006)


def test_float32_is_close_to_float64_with_the_exact_erf(weights, tokenizer, monkeypatch):
    vectors = minilm.embed(weights, *tokenizer.batch(THREE))
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    monkeypatch.setattr(minilm, "erf", np.vectorize(math.erf))
    exact = minilm.embed(wide, *tokenizer.batch(THREE))
    assert exact.dtype == np.float64
    np.testing.assert_allclose(vectors, exact, rtol=0, atol=1e-6)


def test_filling_up_does_not_change_a_vector(weights, tokenizer):
    alone = minilm.embed(weights, *tokenizer.batch(["A cat."]))[0]
    filled = minilm.embed(weights, *tokenizer.batch(["A cat.", "Many more words " * 8]))[0]
    np.testing.assert_allclose(alone, filled, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype, bound", [(np.float64, 1.5e-7), (np.float32, 6.1e-7)])
def test_erf_is_as_good_as_it_says(dtype, bound):
    x = np.linspace(-6, 6, 100_001).astype(dtype)
    exact = np.vectorize(math.erf)(x.astype(np.float64))
    assert minilm.erf(x).dtype == dtype
    assert np.abs(minilm.erf(x) - exact).max() <= bound


# --- with tensorcx --------------------------------------------------------------------------------


@pytest.fixture
def name(weights):
    embeddings.publish("model", weights)
    yield "model"
    cx.delete("model")


def test_shared_weights_are_shared_read_only_and_equal(weights, name):
    shared = embeddings.shared_weights(name)
    assert list(shared) == list(weights)
    for key, array in shared.items():
        assert cx.is_shared(array) and not array.flags.writeable, key
        assert array.dtype == weights[key].dtype, key
        np.testing.assert_array_equal(array, weights[key])


def test_shared_and_private_weights_give_the_same_bits(weights, name, tokenizer):
    batch = tokenizer.batch(embeddings.SENTENCES)
    shared = minilm.embed(embeddings.shared_weights(name), *batch)
    assert shared.tobytes() == minilm.embed(weights, *batch).tobytes()


def test_a_killed_worker_is_replaced_and_nothing_of_it_stays(daemon, weights, name, tokenizer):
    jobs = [[text] for text in THREE] * 4
    with Pool(2, embeddings.shared_weights, name) as pool:
        answers = pool.run(jobs, deadly_job=1)
        assert len(pool.dead) == len(pool.replacements) == 1
        assert pool.dead[0].process.exitcode == -9
        daemon.settle(clients=3)  # this process and two workers
    for text, answer in zip(jobs, answers, strict=True):
        expected = minilm.embed(weights, *tokenizer.batch(text))
        np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-6)
    daemon.settle(clients=1)


def test_a_worker_that_cannot_start_is_an_error(capfd):
    no_weights = pytest.raises(RuntimeError, match="before it had its weights")
    with Pool(1, embeddings.shared_weights, "no such name") as pool, no_weights:
        pool.run([["text"]], deadly_job=0)
    assert "no such name" in capfd.readouterr().err


def test_the_demo_keeps_its_promises(tmp_path):
    with d.Daemon(tmp_path, "--reserve=80M") as running:  # as one that starts by itself
        environment = os.environ | {"TENSORCX_SOCKET": str(running.path)}
        output = run_example("embeddings.py", env=environment)
    assert output.count("then SIGKILL") == output.count("the replacement") == 1
    assert output.count("yes ") == 3 and "NO " not in output
    memory = re.search(r"^memory of all processes.* ([\d.]+) MB +([\d.]+) MB$", output, re.M)
    shared, private = map(float, memory.groups())
    assert private - shared > 2.5 * 90.9  # four copies against one, with room for what varies
    assert re.search(r" 0\.0 MB +kept warm", output)  # the reserve is not the program's
    assert re.search(r"committed by the daemon for the weights +92\.3 MB", output)


def test_a_killed_demo_leaves_nothing(daemon):
    # Its workers are clients, too; that they end and the name goes, `nothing_left` checks.
    demo = subprocess.Popen([sys.executable, EXAMPLES / "embeddings.py"], stdout=subprocess.DEVNULL)
    try:
        daemon.settle(names=1, clients=2 + embeddings.WORKERS)
    finally:
        demo.kill()
        demo.wait()


def test_frames_arrive_by_multiprocessing_complete_and_in_order():
    lines = run_example("mp_queue.py").splitlines()
    assert lines == [
        "30 of 30 frames of 6.2 MB came complete and in order",
        "the last user is gone, and the memory is free",
    ]


def test_quickstart_shows_that_memory_outlives_its_producer_and_is_freed():
    lines = run_example("quickstart.py").splitlines()
    assert "[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]" in lines
    assert lines[-2:] == ["name deleted, array in use: 48 bytes", "last user gone: 0 bytes"]
