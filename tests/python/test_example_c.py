"""The C example, built against the package's own header and library, with a Python process."""

import subprocess
import sys

import daemon as d

EXAMPLES = d.ROOT / "examples"
PACKAGE = d.PACKAGES / "tensorcx"


def build(program):
    """Compiles examples/share.c as a user would."""
    warnings = ["-Wall", "-Wextra", "-Werror"]
    library = [f"-L{PACKAGE}/lib", "-l:libtensorcx.so.0", f"-Wl,-rpath,{PACKAGE}/lib"]
    source = [f"-I{PACKAGE}/include", EXAMPLES / "share.c"]
    subprocess.run(["cc", *warnings, *source, *library, "-o", program], check=True)


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
