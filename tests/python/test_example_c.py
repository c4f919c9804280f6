"""The C examples, built against the package's own header and library."""

import subprocess
import sys
from pathlib import Path

import daemon as d

EXAMPLES = d.ROOT / "examples"
PACKAGE = d.PACKAGES / "tensorcx"


def build(program):
    """Compiles the example of that name as a user would."""
    warnings = ["-Wall", "-Wextra", "-Werror"]
    library = [f"-L{PACKAGE}/lib", "-l:libtensorcx.so.0", f"-Wl,-rpath,{PACKAGE}/lib"]
    source = [f"-I{PACKAGE}/include", EXAMPLES / f"{program.name}.c"]
    subprocess.run([*d.COMPILER, *warnings, *source, *library, "-o", program], check=True)


def test_a_c_program_and_python_share_one_tensor(tmp_path):
    build(tmp_path / "share")
    run = subprocess.run(
        [tmp_path / "share", sys.executable, EXAMPLES / "share.py"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    assert "python saw [[100.0, 101.0, 102.0], [103.0, 104.0, 105.0]]" in run.stdout
    assert "first pixel: 100, last pixel: 105, sum: 615" in run.stdout


def test_alone_it_waits_for_a_python_process_that_somebody_else_starts(tmp_path):
    build(tmp_path / "share")
    with subprocess.Popen([tmp_path / "share"], stdout=subprocess.PIPE, text=True) as alone:
        assert "now run" in alone.stdout.readline()
        children = Path(f"/proc/{alone.pid}/task/{alone.pid}/children")
        subprocess.run([sys.executable, EXAMPLES / "share.py"], check=True, timeout=120)
        assert not children.exists() or children.read_text() == ""
        output, _ = alone.communicate(timeout=120)
    assert alone.returncode == 0
    assert "sum: 615" in output


def test_a_tensor_without_a_name_goes_through_a_pipe(tmp_path):
    build(tmp_path / "pass")
    make = [tmp_path / "pass", "make"]
    ticket = subprocess.run(make, stdout=subprocess.PIPE, check=True, timeout=120).stdout
    count = [tmp_path / "pass", "sum"]
    run = subprocess.run(count, input=ticket, stdout=subprocess.PIPE, check=True, timeout=120)
    assert run.stdout == b"a ticket of 80 bytes, 1000000 numbers, sum 499999500000\n"
