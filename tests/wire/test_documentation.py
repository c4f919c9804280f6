"""proto/README.md describes every message and status, and nothing that does not exist."""

import re
from pathlib import Path

import pytest
from wire_table import MESSAGES, Status

TEXT = (Path(__file__).parents[2] / "proto" / "README.md").read_text()
SECTIONS = dict(re.findall(r"^### ([A-Z_]+)\n(.*?)(?=^##|\Z)", TEXT, re.DOTALL | re.MULTILINE))
ROWS = dict(re.findall(r"^\| `([A-Z_]+)` \| (\d+) \|", TEXT, re.MULTILINE))


@pytest.fixture(autouse=True)
def nothing_left():
    """No daemon here."""


@pytest.mark.parametrize("message", MESSAGES.values(), ids=str)
def test_a_message_has_a_section(message):
    section = SECTIONS[message.name]
    assert section.startswith(f"Opcode {message.opcode}, {'call' if message.is_call else 'note'}")
    assert ("with a descriptor" in section.lower()) == bool(message.fds)


@pytest.mark.parametrize("message", MESSAGES.values(), ids=str)
def test_a_section_names_every_field_of_its_message(message):
    for layout in filter(None, [message.request, message.reply]):
        for field, _ in layout.fields:
            if not field.startswith("reserved") and message.name != "STATS":
                assert f"`{field}`" in SECTIONS[message.name], field


@pytest.mark.parametrize("status", Status, ids=lambda s: s.name)
def test_a_status_has_a_line(status):
    assert ROWS[status.name] == str(int(status))


def test_nothing_is_described_that_does_not_exist():
    assert SECTIONS.keys() == MESSAGES.keys()
    assert ROWS.keys() == {status.name for status in Status}
