"""What operators and developers read: man page, events, targets of make are whole, units valid."""

import re
import shutil
import subprocess
from pathlib import Path

import daemon as d
import pytest

PAGE = d.ROOT / "daemon" / "tensorcxd.8"
TEXT = PAGE.read_text()


def defaults(text: str) -> list[str]:
    return sorted(re.findall(r"\(default: (\d+M?)\)", " ".join(text.split())))


def test_it_has_exactly_the_options_of_the_help() -> None:
    told = subprocess.check_output([d.PROGRAM, "--help"], text=True)
    options = re.findall(r"^ +--([a-z-]+)", told, re.MULTILINE)
    assert len(options) > 8
    assert re.findall(r"^\.It Fl -([a-z-]+)", TEXT, re.MULTILINE) == options
    assert defaults(TEXT) == [value for value in defaults(told) if value != "0"]


@pytest.mark.skipif(not shutil.which("mandoc"), reason="no mandoc")
def test_mandoc_finds_nothing_wrong() -> None:
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", PAGE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in (d.ROOT / "daemon" / "systemd").iterdir():
        text = unit.read_text().replace("/usr/local/bin/tensorcxd", d.PROGRAM)
        (tmp_path / unit.name).write_text(text.replace("man:tensorcxd(8)", "https://localhost"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", *sorted(tmp_path.iterdir())],
        env=d.bare_environment(XDG_RUNTIME_DIR=str(tmp_path)), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if "tensorcxd" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


def test_every_event_of_the_log_is_explained() -> None:
    sources = "".join(path.read_text() for path in (d.ROOT / "daemon").glob("*.c"))
    events = set(re.findall(r'"event=([a-z.]+)', sources))
    assert len(events) > 10
    table = (d.ROOT / "docs" / "operations.md").read_text().partition("## The log")[2]
    explained = set(re.findall(r"`([a-z]+\.[a-z]+)[` ]", table.partition("\n## ")[0]))
    assert explained - {"tensorcxd.log"} == events


def test_make_help_lists_every_target_that_says_what_it_does() -> None:
    makefiles = [d.ROOT / "Makefile", *d.ROOT.glob("tests/**/*.mk")]
    lines = [line for path in makefiles for line in path.read_text().splitlines()]
    told = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    listed = subprocess.check_output(["make", "--silent", "help"], cwd=d.ROOT, text=True)
    assert sorted(listed.splitlines()) == sorted(told)
