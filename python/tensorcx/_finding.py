"""What tensorcx doctor found out."""

from typing import NamedTuple


class Finding(NamedTuple):
    state: str  # "ok", "note": works, but worth knowing; "problem"
    topic: str
    text: str
    advice: str = ""
