"""Builds the wheel: the Makefile compiles, this copies what it made.

The Makefile is the one description of the C build, and build/python/tensorcx what it assembles; the
wheel contains exactly that. An editable install gets the compiled files beside the Python sources.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
BUILD = Path("build/wheel")
COMPILED = ("_core.abi3.so", "lib", "include")


class Build(build_py):
    def run(self) -> None:
        subprocess.check_call(
            [
                *("make", "-C", str(HERE), f"-j{os.cpu_count() or 1}", "all"),
                *(f"BUILD={BUILD}", f"HEADERS_FROM={sys.executable}"),
            ]
        )
        made = HERE / BUILD / "python" / "tensorcx"
        if self.editable_mode:
            for name in COMPILED:
                replace(made / name, HERE / "python" / "tensorcx" / name)
        else:
            replace(made, Path(self.build_lib) / "tensorcx")

    def get_source_files(self) -> list[str]:
        return []  # MANIFEST.in names them


def replace(source: Path, target: Path) -> None:
    """Copies a file or folder; nothing of an older build stays in the target."""
    if target.is_dir():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


class Compiled(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    cmdclass={"build_py": Build},
    distclass=Compiled,
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
