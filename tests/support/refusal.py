"""What a test expects when the daemon refuses a call that was made by hand."""

import pytest
from wire import Refused
from wire_table import Status


def refused(status: Status, *words: str):
    """A context: a call in it is answered with `status` and a text with these words in order."""
    return pytest.raises(Refused, match=f"^{status.name}: .*" + ".*".join(words))
