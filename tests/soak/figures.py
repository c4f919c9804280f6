"""What the daemon tells of itself, beside what it must be."""

import time

import wire
from model import closure


def differences(soak, stats, clients, entries, channels) -> list[str]:
    """What is wrong. What may be or not, has a least and a spare part."""
    model = soak.model
    wrong = names_differ(model, entries) + clients_differ(model, clients)
    connected = [holder for holder in model.holders.values() if holder.is_connected]
    held = [model.held_by(holder) for holder in model.holders.values()]
    alive, all_held = model.alive(), set().union(*(sure | perhaps for sure, perhaps in held))
    extra = closure(all_held) - alive
    opened = {seat.channel for holder in connected for seat in holder.seats.values()}
    opened |= set(model.channels.values())
    kept = {s for s in all_held if s.is_buffers} - {channel.buffers for channel in opened}
    wanted = {
        "clients": (len(connected), 0),
        "storages": (len(alive), len(extra)),
        "bytes": (on_cpu(alive), on_cpu(extra)),
        "holds": (sum(len(sure) for sure, _ in held), sum(len(perhaps) for _, perhaps in held)),
        "names": (sum(name.current is not None for name in model.names.values()), 0),
        "tickets": (sum(not ticket.is_spent for ticket in model.tickets), 0),
        "channels": (len(opened), len(kept)),
        "waiting": (0, 0),
        "dropped": (soak.dropped, 0),
    }
    for name, (least, more) in wanted.items():
        if not least <= stats[name] <= least + more:
            wrong.append(f"{name}: {stats[name]}, not {least}" + (f" + {more}" if more else ""))
    if len(channels) != stats["channels"]:
        wrong.append(f"channels() tells {len(channels)} of {stats['channels']}")
    known = model.channels.keys() | {""}
    return wrong + [f"channel {c}" for c in channels if c["name"] not in known]


def names_differ(model, entries):
    wrong, now = [], time.monotonic()
    there = {entry["name"]: entry for entry in entries}
    for text, name in model.names.items():
        entry = there.pop(text, None)
        if entry is None and name.current and 0 < name.until < now:
            name.current, name.until = None, 0  # its time is over
        if (entry is None) != (name.current is None):
            wrong.append(f"name {text!r}: {entry and entry['version']}")
        elif entry and entry["version"] != name.current.version:
            wrong.append(f"name {text!r}: {entry['version']}, not {name.current.version}")
        elif entry and 0 < name.until < now - 1:
            wrong.append(f"name {text!r} is there {now - name.until:.1f} s after its end")
    return wrong + [f"name {text!r}, which nobody has put" for text in there]


def clients_differ(model, clients):
    wrong = []
    for client in clients:
        holders = [h for h in model.holders.values() if h.pid == client["pid"]]
        holder = next((h for h in holders if h.is_gone != client["connected"]), None)
        if holder is None:
            wrong.append(f"a client that should be gone: {client}")
            continue
        sure, perhaps = model.held_by(holder)
        tickets = sum(t.owner == holder.number and not t.is_spent for t in model.tickets)
        for what, least, more in (
            ("tensors", len(sure), len(perhaps)),
            ("bytes", on_cpu(sure), on_cpu(perhaps)),
            ("tickets", tickets if client["connected"] else client["tickets"], 0),
        ):
            if not least <= client[what] <= least + more:
                wrong.append(
                    f"member {holder.number} (pid {holder.pid}): {client[what]} {what},"
                    f" not {least}" + (f" + {more}" if more else "")
                )
    return wrong


def missing(model, path) -> list[str]:
    """What the daemon does not have, though it must."""
    wrong = []
    with wire.Connection(path) as client:
        for storage in (s for s in model.alive() if s.id):
            try:
                client.hold(storage.id)
            except wire.Refused:
                wrong.append(f"{storage} is gone, kept by {model.keepers(storage)}")
    return wrong


def on_cpu(storages):
    return sum(s.nbytes for s in storages if not s.on_device)
