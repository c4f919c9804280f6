"""One wheel for every Python from 3.11 on: on each, tests/python passes with what pip installs.

An interpreter is looked for in the PATH and among pyenv's; one that is not here is named by a skip.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PINS = ("-c", ROOT / "tools" / "requirements-matrix.txt")
NEEDED = ("apache-tvm-ffi", "hypothesis", "pytest", "pytest-timeout", "safetensors")
LEFT_OUT = ("cuda", "test_cases.py", "test_demo.py", "test_doctor.py", "test_manual.py")

pytestmark = pytest.mark.timeout(900)


def output(*command: object) -> str:
    """What it wrote, also if it failed."""
    return subprocess.run(
        [str(word) for word in command], text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ).stdout  # fmt: skip


def pip(python: object, *arguments: object) -> str:
    return output(python, "-m", "pip", "-q", "--disable-pip-version-check", *arguments)


def interpreter(version: str) -> str:
    """A program that is of that version and can make environments."""
    of_pyenv = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")
    asks = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    for program in [shutil.which(f"python{version}"), *map(str, of_pyenv)]:
        if program and output(program, "-c", asks).strip() == version:
            return program
    pytest.skip(f"Python {version} is not here, neither in the PATH nor in ~/.pyenv/versions")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    said = pip(sys.executable, "wheel", "--no-deps", "-w", folder, ROOT)
    found = list(folder.glob("*.whl"))
    assert len(found) == 1, said
    return found[0]


@pytest.fixture
def environment(tmp_path):
    """A fresh one for a version; it returns its Python."""

    def make(version: str) -> Path:
        subprocess.check_call([interpreter(version), "-m", "venv", tmp_path / "venv"])
        return tmp_path / "venv" / "bin" / "python"

    return make


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_what_the_wheel_brings_passes_the_tests(version, environment, wheel, tmp_path):
    python = environment(version)
    said = pip(python, "install", wheel, *PINS, *NEEDED)
    [package] = tmp_path.glob("venv/lib/python*/site-packages/tensorcx")
    assert (package / "_core.abi3.so").exists(), said
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TENSORCX"))}
    tests = subprocess.run(
        [
            *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"),
            *("tests/python", "--ignore-glob=*/test_example*"),
            *(f"--ignore=tests/python/{name}" for name in LEFT_OUT),
        ],
        cwd=ROOT,
        env=env | {"TENSORCX_PACKAGES": str(package.parent)},
        check=False,
    )
    assert tests.returncode == 0


def test_an_older_python_is_refused_and_told_why(environment, wheel):
    python = environment("3.10")
    assert "requires a different Python: 3.10" in pip(python, "install", ROOT)
    assert "not a supported wheel" in pip(python, "install", wheel)
