"""tensorcxd's own command line: every option is checked, explained, and named in its error."""

import re
import subprocess

import pytest
from daemon import PROGRAM, bare_environment


def run(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, timeout=60,
        env=bare_environment(), check=False,
    )  # fmt: skip


HELP = run("--help").stdout
WITH_VALUE = re.findall(r"^ +--([a-z-]+)=", HELP, re.MULTILINE)
FLAGS = re.findall(r"^ +--([a-z-]+)(?!=)(?: |$)", HELP, re.MULTILINE)
NUMBERS = [o for o in WITH_VALUE if o not in ("socket", "log", "backing", "log-level")]


def test_help_and_version_are_answers():
    assert run("--help").returncode == 0
    assert "--socket" in HELP and len(WITH_VALUE) > 8
    version = run("--version")
    assert version.returncode == 0 and re.search(r"\d+\.\d+\.\d+", version.stdout)


def refused(*arguments, says):
    done = run(*arguments)
    assert done.returncode not in (0, None) and done.returncode > 0
    assert says in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1, "one clear line"


BAD = ["-1", "x", "1x", "nan", "inf", "0x10", "1e999", "99999999999999999999999", "", " 1", "1 "]


@pytest.mark.parametrize("option", NUMBERS)
@pytest.mark.parametrize("value", BAD, ids=repr)
def test_a_number_is_checked(option, value):
    refused(f"--{option}={value}", says=f"--{option}")


@pytest.mark.parametrize("option", ["backing", "log-level"])
@pytest.mark.parametrize("value", ["", "x", "auto|posix", "POSIX", "memfdx"])
def test_a_choice_is_checked_and_the_choices_are_listed(option, value):
    refused(f"--{option}={value}", says=f"--{option}")


@pytest.mark.parametrize("option", WITH_VALUE)
def test_a_missing_argument_is_named(option):
    refused(f"--{option}", says=f"--{option}")


@pytest.mark.parametrize("option", FLAGS)
def test_a_flag_takes_no_argument(option):
    refused(f"--{option}=1", says=f"--{option}")


@pytest.mark.parametrize("word", ["--nonsense", "-x", "word", "--", "--socke=/x", "--sockets=/x"])
def test_an_unknown_word_is_refused(word):
    refused(word, says=word)


def test_a_log_file_that_cannot_be_written_is_named(folder):
    refused("--socket", f"{folder}/d.sock", "--log", f"{folder}/no/such/log", says="no/such/log")


def test_the_log_goes_where_it_is_told(start, folder):
    daemon = start("--log", f"{folder}/own.log")
    with daemon.connect() as client:
        client.put("x", b"y")
        client.delete("x")
    with open(f"{folder}/own.log") as log:
        lines = log.read().splitlines()
    assert lines and all("event=" in line for line in lines), lines
