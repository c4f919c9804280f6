"""Exceptions. The C half raises them by status, through BY_STATUS."""


class Error(Exception):
    """What tensorcx raises, unless a built-in exception says it better (ValueError, TypeError)."""


class NotFound(Error, KeyError):
    """There is no such name."""

    __str__ = Exception.__str__  # KeyError shows the repr of its argument


class Exists(Error):
    """The name exists already, and exclusive=True was asked for."""


class OutOfMemory(Error, MemoryError):
    """The daemon's capacity, the machine's memory or this process's own is used up."""


class Timeout(Error, TimeoutError):
    """What was waited for did not come in time."""


class Stale(Error):
    """The memory that is referred to is gone."""


class DaemonUnavailable(Error, ConnectionError):
    """No daemon runs, none could be started, or it does not talk to us."""


class DaemonLost(Error, ConnectionError):
    """The daemon went away during the call. The next call looks for a new one."""


class ChannelClosed(Error):
    """The queue or topic was shut down or deleted: nothing is sent any more."""


class DeviceError(Error, RuntimeError):
    """A CUDA device cannot be used: no driver, no such device, or the driver refused."""


class ExchangeError(Error, BufferError, ValueError):
    """A dtype, device, layout or mode that cannot be exchanged or stored.

    The array API asks for BufferError in some places and for ValueError in others: it is both.
    """


# Index is the status, as in tensorcx.h.
BY_STATUS: tuple[type[BaseException], ...] = (
    SystemError,  # OK is not raised
    NotFound,
    Exists,
    OutOfMemory,
    Error,  # LIMIT
    Timeout,
    Error,  # CANCELLED
    Stale,
    ValueError,  # INVALID
    DaemonUnavailable,
    DaemonLost,
    DaemonUnavailable,  # VERSION_MISMATCH
    DaemonUnavailable,  # DENIED
    ExchangeError,
    Error,  # SYSTEM
    Error,  # INTERNAL
    KeyboardInterrupt,  # INTERRUPTED
    ChannelClosed,
    DeviceError,
)
