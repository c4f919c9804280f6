"""Numbers and errors as people read them."""


def size_text(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def age_text(seconds: float) -> str:
    for limit, unit in ((60, "s"), (3600, "min"), (86400, "h")):
        if seconds < limit:
            return f"{seconds * 60 / limit:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def printable_text(text: str) -> str:
    """What turns the direction of a line, breaks it or is not seen is shown by its code."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def error_text(error: BaseException) -> str:
    """One line."""
    return " ".join(str(error).split()) or type(error).__name__
