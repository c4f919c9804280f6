"""The protocol's tables, read from the C sources that define them.

messages.def, status.def, stats.def and messages.h are the single source; nothing here repeats a
size, an opcode or a field, so the tests cannot drift from the daemon.
"""

import enum
import re
import struct
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "proto" / "wire"

SCALARS = {
    "uint8_t": "B",
    "uint16_t": "H",
    "uint32_t": "I",
    "uint64_t": "Q",
    "int32_t": "i",
    "int64_t": "q",
}
BYTES = ("char", "uint8_t")  # arrays of these are bytes


def source(name: str) -> str:
    """A source file without its comments and with continued lines joined."""
    text = re.sub(r"/\*.*?\*/", "", (SOURCES / name).read_text(), flags=re.DOTALL)
    return re.sub(r"//[^\n]*", "", text).replace("\\\n", " ")


def rows(name: str, macro: str) -> list[list[str]]:
    """The arguments of every MACRO(...) line of a .def file."""
    return [
        [argument.strip() for argument in line[len(macro) + 1 : -1].split(",")]
        for line in source(name).splitlines()
        if line.startswith(macro + "(")
    ]


class Layout:
    """One C struct without padding: packs and unpacks its fields by name; nested ones are dicts."""

    def __init__(self, name: str, fields: list[tuple[str, "str | Layout"]]):
        self.name = name
        self.fields = fields
        self.size = sum(f.size if isinstance(f, Layout) else struct.calcsize(f) for _, f in fields)

    def pack(self, **values) -> bytes:
        unknown = values.keys() - {name for name, _ in self.fields}
        if unknown:
            raise TypeError(f"struct {self.name} has no field {sorted(unknown)}")
        return b"".join(
            kind.pack(**values.get(name, {}))
            if isinstance(kind, Layout)
            else struct.pack("=" + kind, values.get(name, b"" if kind.endswith("s") else 0))
            for name, kind in self.fields
        )

    def unpack(self, data: bytes) -> dict:
        values, at = {}, 0
        for name, kind in self.fields:
            if isinstance(kind, Layout):
                values[name] = kind.unpack(data[at:])
                at += kind.size
            else:
                (values[name],) = struct.unpack_from("=" + kind, data, at)
                at += struct.calcsize(kind)
        return values


def read_structs(*names: str) -> dict[str, Layout]:
    layouts: dict[str, Layout] = {}
    stats = "".join(f"uint64_t {name};" for name, *_ in rows("stats.def", "STAT")) + "\n"
    for name in names:
        text = re.sub(r"#define STAT.*?#undef STAT\n", stats, source(name), flags=re.DOTALL)
        for tag, body in re.findall(r"^struct (\w+) \{(.*?)^\}", text, re.DOTALL | re.MULTILINE):
            fields: list[tuple[str, str | Layout]] = []
            for declaration in filter(None, map(str.strip, body.split(";"))):
                kind, *names_ = re.split(r"[\s,]+", declaration.removeprefix("struct "))
                for field in names_:
                    array = re.fullmatch(r"(\w+)\[(\w+)\]", field)
                    if array and array[2].isdigit() and kind in BYTES:
                        fields.append((array[1], f"{array[2]}s"))
                    elif not array:
                        fields.append((field, layouts.get(kind) or SCALARS[kind]))
            layouts[tag] = Layout(tag, fields)
    return layouts


STRUCTS = read_structs("desc.h", "messages.h", "desc.c")
HEADER = STRUCTS["wire_header"]
DTYPE = STRUCTS["desc_dtype"]
DESC_HEAD = STRUCTS["encoded"]


def evaluate(expression: str, known: dict[str, int]) -> int:
    """The value of a C constant: numbers, known names, + * ( ) and sizeof(struct x)."""
    sized = re.sub(
        r"sizeof\((?:struct )?(\w+)\)",
        lambda m: str(STRUCTS[m[1]].size if m[1] in STRUCTS else struct.calcsize(SCALARS[m[1]])),
        expression,
    )
    named = re.sub(r"\b[A-Z]\w+\b", lambda m: str(known[m[0]]), re.sub(r"(\d)u\b", r"\1", sized))
    named = re.sub(r"\b(0x[0-9a-f]+)u\b", r"\1", named)
    if not re.fullmatch(r"[0-9a-fx+*() ]+", named):
        raise ValueError(f"not a constant: {expression}")
    return eval(named)


def read_constants() -> dict[str, int]:
    known: dict[str, int] = {}
    for name, value in re.findall(r"^#define (WIRE_\w+) +(.+?) *$", source("messages.h"), re.M):
        known[name] = evaluate(value, known)
    for body in re.findall(
        r"enum(?: \w+)? \{(.*?)\}", source("messages.h") + source("desc.h"), re.S
    ):
        for name, value in re.findall(r"(\w+) = (\d+)", body):
            known[name] = int(value)
    return known


CONSTANTS = read_constants()
Status = enum.IntEnum(
    "Status", {name: int(value) for name, value, *_ in rows("status.def", "STATUS")}
)
STATS = [name for name, *_ in rows("stats.def", "STAT")]


@dataclass(frozen=True)
class Message:
    """One row of messages.def."""

    name: str
    opcode: int
    state: str
    is_call: bool
    request: Layout
    request_tail: int
    reply: Layout | None = None
    reply_tail: int = 0
    fds: int = 0  # with the reply of a call, or with a note

    @property
    def request_fds(self) -> int:
        return 0 if self.is_call else self.fds

    @property
    def reply_fds(self) -> int:
        return self.fds if self.is_call else 0

    def __str__(self) -> str:
        return self.name


def read_messages() -> dict[str, Message]:
    messages = {}
    for name, lower, opcode, state, request_tail, reply_tail, fds in rows("messages.def", "CALL"):
        messages[name] = Message(
            name,
            int(opcode),
            state,
            True,
            STRUCTS[f"wire_{lower}"],
            evaluate(request_tail, CONSTANTS),
            STRUCTS[f"wire_{lower}_reply"],
            evaluate(reply_tail, CONSTANTS),
            int(fds),
        )
    for name, lower, opcode, state, tail, fds in rows("messages.def", "NOTE"):
        layout = STRUCTS[f"wire_{lower}"]
        tail_max = evaluate(tail, CONSTANTS)
        messages[name] = Message(name, int(opcode), state, False, layout, tail_max, fds=int(fds))
    return messages


MESSAGES = read_messages()
BY_OPCODE = {message.opcode: message for message in MESSAGES.values()}
