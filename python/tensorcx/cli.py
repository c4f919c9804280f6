"""The command line: looks into the daemon, and moves .npy and .safetensors files in and out."""

import argparse
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import tensorcx as cx
from tensorcx import _doctor
from tensorcx._channel import ChannelEntry
from tensorcx._client import Entry
from tensorcx._text import age_text as _age
from tensorcx._text import error_text, printable_text
from tensorcx._text import size_text as _bytes


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command; an error is one line on stderr and exit code 1."""
    options = _parser().parse_args(arguments)
    if sys.stdout is None:  # it was closed
        sys.stdout = io.TextIOWrapper(io.BytesIO())
    if isinstance(sys.stdout, io.TextIOWrapper):  # one that cannot show a name shows its code
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # `tensorcx ls | head -1`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)
    except (cx.Error, OSError, ValueError, TypeError, ImportError, MemoryError) as error:
        sys.exit(f"tensorcx: {error_text(error)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tensorcx", description="Looks into the tensorcx daemon of this user."
    )
    parser.add_argument("--version", action="version", version=f"tensorcx {cx.__version__}")
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help="the daemon's socket (default: $TENSORCX_SOCKET or the user's)",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    ls = add("ls", _ls, "list names: dtype, shape, bytes, version, age")
    ls.add_argument("prefix", nargs="?", default="", help="only names that begin so")
    add("channels", _channels, "list queues and topics")
    add("stat", _stat, "all about one name, queue or topic").add_argument("name")
    add("rm", _rm, "remove names, end queues and topics").add_argument("name", nargs="+")
    add("devices", _devices, "list CUDA devices and what the daemon has there")
    put = add("put", _put, "publish the array of a .npy file, the tensors of a .safetensors file")
    put.add_argument("name")
    put.add_argument("file")
    put.add_argument(
        "--skip",
        metavar="PATTERN",
        action="append",
        default=[],
        help="leave tensors of a .safetensors file out, such as 'lm_head.*'; can be repeated",
    )
    put.add_argument("--device", metavar="DEVICE", help="where to put it, such as cuda:0")
    get = add("get", _get, "write a tensor to a .npy file, or a bundle to a .safetensors file")
    get.add_argument("name")
    get.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="- writes .npy to standard output"
    )
    add("clients", _clients, "list processes and what they hold")
    stats = add("stats", _stats, "the daemon's counters")
    stats.add_argument("--json", action="store_true", help="as JSON, bytes in full")
    doctor = add("doctor", _examine, "find out what is wrong here, and what to do")
    doctor.add_argument("--json", action="store_true", help="as JSON, with the daemon's counters")
    doctor.add_argument(
        "--self-test",
        action="store_true",
        help="start a daemon if none runs, and test it; one that runs is always tested",
    )
    add("stop", _stop, "end the daemon; mapped memory stays valid, names are gone")
    return parser


def _client(options: argparse.Namespace, autostart: bool = False) -> cx.Client:
    return cx.Client(options.socket, autostart)


# ----------------------------------------------------------------------------------------- commands


def _ls(options: argparse.Namespace) -> None:
    entries = _client(options).entries(options.prefix)
    several = any(entry["device"] not in (None, "cpu") for entry in entries)
    rows = [
        (
            entry["name"],
            *_kind(entry),
            *_if(several, entry["device"] or "-"),
            _bytes(entry["nbytes"]),
            entry["version"],
            _age(entry["age"]),
        )
        for entry in entries
    ]
    header = ("NAME", "DTYPE", "SHAPE", *_if(several, "DEVICE"), "BYTES", "VERSION", "AGE")
    _table(header, rows, right=("BYTES", "VERSION", "AGE"))


def _channels(options: argparse.Namespace) -> None:
    rows = [
        (
            channel["name"] or "(deleted)",
            channel["kind"],
            f"{channel['depth']}/{channel['capacity']}",
            channel["messages"],
            f"{channel['buffers']} x {_bytes(channel['buffer_bytes'])}",
            sum(handle["buffers"] for handle in channel["handles"]),
            sum(handle["is_open"] for handle in channel["handles"]),
            "shut down" if channel["is_shut_down"] else "open",
        )
        for channel in _client(options).channels()
    ]
    header = ("NAME", "KIND", "WAITING", "MESSAGES", "BUFFERS", "IN USE", "HANDLES", "STATE")
    _table(header, rows, right=("WAITING", "MESSAGES", "BUFFERS", "IN USE", "HANDLES"))


def _stat(options: argparse.Namespace) -> None:
    client = _client(options)
    for channel in client.channels():
        if channel["name"] == options.name:
            return _stat_channel(channel)
    entry = client.stat(options.name)
    dtype, shape = _kind(entry)
    rows = [
        ("name", entry["name"]),
        ("version", entry["version"]),
        ("dtype", dtype),
        ("shape", shape),
        *_if(entry["device"], ("device", entry["device"])),
        ("bytes", f"{entry['nbytes']} ({_bytes(entry['nbytes'])})"),
        ("storage", entry["storage_id"]),
        ("read-only", _yes(entry["readonly"])),
        ("ephemeral", _yes(entry["ephemeral"])),
        ("age", _age(entry["age"])),
        ("ttl", "none" if entry["ttl"] is None else f"{_age(entry['ttl'])} left"),
        ("holders", entry["holders"]),
        ("publisher", f"pid {entry['publisher']}"),
    ]
    _table(None, rows)
    if entry["is_bundle"]:
        print()
        _stat_bundle(client.get(options.name))


def _stat_bundle(bundle: cx.Bundle) -> None:
    parts = dict(_parts(bundle))
    several = any(part.device != "cpu" for part in parts.values())
    header = ("KEY", "DTYPE", "SHAPE", *_if(several, "DEVICE"), "BYTES")
    rows = [
        (
            key,
            str(part.dtype),
            _shape(part.shape),
            *_if(several, part.device),
            _bytes(part.nbytes),
        )
        for key, part in parts.items()
    ]
    _table(header, rows, right=("BYTES",))


def _stat_channel(channel: ChannelEntry) -> None:
    size = channel["buffer_bytes"]
    rows = [
        ("name", channel["name"]),
        ("kind", channel["kind"]),
        ("full, it", {"block": "blocks", "drop_oldest": "drops the oldest"}[channel["overflow"]]),
        ("waiting", f"{channel['depth']} of {channel['capacity']} messages"),
        ("messages", channel["messages"]),
        ("buffers", channel["buffers"]),
        ("bytes", f"{size} ({_bytes(size)}) each" if size else "no size yet"),
        *_if(size, ("device", channel["device"])),
        ("handles", f"at most {channel['participants']}"),
        ("shut down", _yes(channel["is_shut_down"])),
    ]
    _table(None, rows)
    handles = [
        (
            seat["pid"] or "-",
            seat["program"] or "gone",
            seat["buffers"],
            seat["behind"],
            "open" if seat["is_open"] else "closed",
        )
        for seat in channel["handles"]
    ]
    print()
    header = ("PID", "PROGRAM", "BUFFERS", "BEHIND", "HANDLE")
    _table(header, handles, right=("PID", "BUFFERS", "BEHIND"))


def _parts(bundle: cx.Bundle, path: str = "") -> Iterator[tuple[str, cx.Tensor]]:
    for key, value in bundle.items():
        if isinstance(value, cx.Bundle):
            yield from _parts(value, f"{path}{key}/")
        else:
            yield path + key, value


def _rm(options: argparse.Namespace) -> None:
    client = _client(options)
    missing = []
    for name in options.name:
        try:
            client.delete(name)
        except cx.NotFound:
            missing.append(repr(name))
    if missing:
        raise cx.NotFound(f"no such name: {', '.join(missing)}")


def _put(options: argparse.Namespace) -> None:
    client = _client(options, autostart=True)
    if _is_safetensors(options.file):
        client.put_safetensors(options.name, options.file, skip=options.skip, device=options.device)
    elif options.skip:
        raise ValueError("--skip is for .safetensors files")
    else:
        client.put(options.name, _load(options.file), device=options.device)


def _load(file: str) -> np.ndarray[Any, np.dtype[Any]]:
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, MemoryError):
        raise
    except Exception:  # all that NumPy's parsers raise
        array = None
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{file} is no .npy file with an array of numbers")
    return array


def _get(options: argparse.Namespace) -> None:
    client = _client(options)
    if _is_safetensors(options.output):
        client.save_safetensors(options.name, options.output)
        return
    found = client.get(options.name)
    if isinstance(found, cx.Bundle):
        raise ValueError(
            f"{options.name!r} is a bundle; it can be written to a .safetensors file,"
            " only tensors to a .npy file"
        )
    if options.output == "-":
        written = io.BytesIO()  # np.save() wants to seek in a file
        np.save(written, found.cpu().numpy(), allow_pickle=False)
        sys.stdout.buffer.write(written.getbuffer())
        return
    with open(options.output, "wb") as file:  # np.save() would append .npy to a name
        np.save(file, found.cpu().numpy(), allow_pickle=False)


def _is_safetensors(file: str) -> bool:
    return file.endswith(".safetensors")


def _clients(options: argparse.Namespace) -> None:
    peers = _client(options).clients()
    several = len({peer["uid"] for peer in peers}) > 1
    on_device = any(peer["device_bytes"] for peer in peers)
    rows = [
        (
            peer["pid"],
            *_if(several, peer["uid"]),
            peer["program"] + (" (this one)" if peer["is_self"] else ""),
            peer["tensors"],
            _bytes(peer["bytes"]),
            *_if(on_device, _bytes(peer["device_bytes"])),
            peer["tickets"],
            peer["waiting"],
            _age(peer["age"]),
            "connected" if peer["connected"] else "memory mapped",
        )
        for peer in peers
    ]
    sizes = ("TENSORS", "BYTES", *_if(on_device, "ON DEVICES"))
    numbers = (*sizes, "TICKETS", "WAITING", "AGE")
    header = ("PID", *_if(several, "USER"), "PROGRAM", *numbers, "STATE")
    _table(header, rows, right=("PID", "USER", *numbers))


def _stats(options: argparse.Namespace) -> None:
    client = _client(options)
    stats = client.stats()
    devices = client.devices() if stats["devices"] else []  # nobody uses CUDA: it is left alone
    if options.json:
        print(json.dumps(stats | ({"cuda": devices} if devices else {}), indent=2))
        return
    _table(None, _readable(stats))
    for device in devices:
        print()
        _table(None, _readable(device))


def _devices(options: argparse.Namespace) -> None:
    rows = [
        (
            device["device"],
            device["name"],
            device["uuid"],
            device["mode"],
            device["storages"],
            *(_bytes(device[key]) for key in ("bytes", "committed_bytes", "capacity_bytes")),
        )
        for device in _client(options).devices()
    ]
    numbers = ("TENSORS", "BYTES", "COMMITTED", "CAPACITY")
    _table(("DEVICE", "NAME", "UUID", "MODE", *numbers), rows, right=numbers)


def _stop(options: argparse.Namespace) -> None:
    _client(options).stop()


def _examine(options: argparse.Namespace) -> None:
    findings, stats = _doctor.examine(options.socket, options.self_test)
    problems = [finding for finding in findings if finding.state == "problem"]
    if options.json:
        found = [finding._asdict() for finding in findings]
        print(json.dumps({"problems": len(problems), "findings": found, "stats": stats}, indent=2))
    else:
        for state, topic, text, advice in findings:
            print(f"{state:<7}  {topic:<11}  {text}")
            if advice:
                print(f"{'':<22}-> {advice}")
    sys.stdout.flush()
    if problems:
        sys.exit(1)


# ------------------------------------------------------------------------------------------- output


def _kind(entry: Entry) -> tuple[str, str]:
    if entry["shape"] is None:
        return "bundle", "-"
    return str(entry["dtype"]), _shape(entry["shape"])


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _readable(counters: dict[str, Any]) -> list[tuple[str, Any]]:
    sizes = [key for key in counters if key == "bytes" or key.endswith("_bytes")]
    return [(key, _bytes(value) if key in sizes else value) for key, value in counters.items()]


def _if(shown: Any, cell: Any) -> list[Any]:
    """A cell of a table, or none."""
    return [cell] if shown else []


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _table(
    header: Sequence[str] | None, rows: Iterable[Sequence[Any]], right: Sequence[str] = ()
) -> None:
    """`right`: the columns that end in line."""
    lines = [
        [printable_text(str(cell)) for cell in row]
        for row in ([header] if header else []) + list(rows)
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if header and header[i] in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
