"""The console script tensorcxd: becomes the daemon that came with the package."""

import os
import sys
from pathlib import Path


def main() -> None:
    program = Path(__file__).parent / "lib" / "tensorcxd"
    os.execv(program, ["tensorcxd", *sys.argv[1:]])
