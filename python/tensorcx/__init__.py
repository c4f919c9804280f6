"""Tensors that several processes share, without copying.

    import numpy as np, tensorcx as cx

    cx.put("weights", array)                  # in one process
    w = np.from_dlpack(cx.get("weights"))     # in any other: the same memory

A local daemon owns the memory and starts by itself. A tensor lives as long as a name points to it
or any process uses it. `Client` is one daemon; the functions here use a default one. All of it may
be used by any thread at any time; what is in a tensor, nobody locks.
"""

import atexit

from tensorcx import _platform

_platform.check()

from tensorcx import _core, _multiprocessing  # noqa: E402
from tensorcx._arguments import shape_of  # noqa: E402
from tensorcx._bundle import Bundle  # noqa: E402
from tensorcx._channel import (  # noqa: E402
    ChannelEntry,
    ChannelStats,
    Queue,
    Subscription,
    Topic,
)
from tensorcx._client import Client, Entry  # noqa: E402
from tensorcx._default import (  # noqa: E402
    asarray,
    channels,
    clients,
    connect,
    delete,
    devices,
    empty,
    empty_like,
    entries,
    exists,
    from_dlpack,
    full,
    get,
    is_shared,
    names,
    put,
    put_safetensors,
    queue,
    save_safetensors,
    stat,
    stats,
    stop,
    topic,
    zeros,
)
from tensorcx._dtypes import KNOWN, format_of  # noqa: E402
from tensorcx._errors import (  # noqa: E402
    BY_STATUS,
    ChannelClosed,
    DaemonLost,
    DaemonUnavailable,
    DeviceError,
    Error,
    ExchangeError,
    Exists,
    NotFound,
    OutOfMemory,
    Stale,
    Timeout,
)
from tensorcx._ref import Ref  # noqa: E402
from tensorcx._sources import message_of  # noqa: E402
from tensorcx._tensor import Tensor  # noqa: E402

__version__ = _core.version()

__all__ = [
    "Bundle",
    "ChannelClosed",
    "ChannelEntry",
    "ChannelStats",
    "Client",
    "DaemonLost",
    "DaemonUnavailable",
    "DeviceError",
    "Entry",
    "Error",
    "ExchangeError",
    "Exists",
    "NotFound",
    "OutOfMemory",
    "Queue",
    "Ref",
    "Stale",
    "Subscription",
    "Tensor",
    "Timeout",
    "Topic",
    "asarray",
    "channels",
    "clients",
    "connect",
    "delete",
    "devices",
    "empty",
    "empty_like",
    "entries",
    "exists",
    "from_dlpack",
    "full",
    "get",
    "is_shared",
    "names",
    "put",
    "put_safetensors",
    "queue",
    "save_safetensors",
    "stat",
    "stats",
    "stop",
    "topic",
    "zeros",
]

# The C half makes these, and raises those.
_core.register(Tensor, Bundle, BY_STATUS, KNOWN, format_of, shape_of, message_of)
_multiprocessing.register()
atexit.register(_core.devices_end)

for _name in __all__:
    globals()[_name].__module__ = __name__  # where users find it; error texts show it
del _name
