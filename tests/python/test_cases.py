"""docs/cases.md and SECURITY.md name tests that exist; the former does for each kind of fault."""

import re

import daemon as d

CASES = (d.ROOT / "docs" / "cases.md").read_text()
SECURITY = (d.ROOT / "SECURITY.md").read_text()
KINDS = re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", CASES, re.DOTALL | re.MULTILINE)


def exists(file: str, name: str) -> bool:
    path = d.ROOT / "tests" / file
    definition = rf"^TEST\({name}\) \{{" if path.suffix == ".c" else rf"^def {name}\("
    return path.exists() and re.search(definition, path.read_text(), re.MULTILINE) is not None


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`([\w./]+)::(\w+)`", CASES)
    assert len(named) > 100
    assert [test for test in named if not exists(*test)] == []


def test_every_file_of_tests_that_is_named_exists() -> None:
    named = re.findall(r"`(\w+/[\w./]+\.(?:py|c))`", SECURITY)
    assert len(named) > 10
    assert [file for file in named if not (d.ROOT / "tests" / file).exists()] == []


def test_every_kind_of_fault_names_a_test() -> None:
    assert len(KINDS) > 25
    assert [kind for kind, text in KINDS if "::" not in text.partition("**Shown by** ")[2]] == []
