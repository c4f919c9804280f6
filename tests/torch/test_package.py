"""The bridge as a package: what is installed, what it imports, and what it leaves alone."""

import os
import shutil
import subprocess
import sys

import daemon as d
import pytest

import torch_tensorcx as bridge

SOURCE = d.ROOT / "integrations" / "torch-tensorcx"


def python(code, **environment):
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, text=True, env=os.environ | environment).strip()


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Where pip has put it, from a copy: what it builds does not belong into the repository."""
    folder = tmp_path_factory.mktemp("package")
    copy = shutil.copytree(
        SOURCE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info")
    )
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    alone = ["--no-index", "--no-deps", "--no-build-isolation"]  # needs nothing from elsewhere
    subprocess.check_call([*pip, *alone, "--target", folder / "site", copy])
    return folder / "site"


def test_it_has_all_its_modules_its_types_and_its_license(installed):
    here = {path.name for path in (SOURCE / "torch_tensorcx").iterdir() if path.is_file()}
    assert {path.name for path in (installed / "torch_tensorcx").iterdir()} - {
        "__pycache__"
    } == here
    assert "py.typed" in here
    [license] = installed.glob("torch_tensorcx-*.dist-info/licenses/LICENSE")
    assert license.read_text() == (d.ROOT / "LICENSE").read_text()


def test_installed_it_works_whoever_was_imported_first(installed):
    """Here tensorcx; in all other tests torch. Nobody loads anything of CUDA for it."""
    said = python(
        "import tensorcx, torch, torch_tensorcx as bridge; x = torch.ones(3);"
        "from importlib.metadata import version;"
        "assert bridge.to_torch(bridge.from_torch(x)).data_ptr() == x.data_ptr();"
        "assert bridge.__version__ == version('torch-tensorcx');"
        "assert torch.version.cuda or 'libcuda' not in open('/proc/self/maps').read();"
        "print(bridge.__file__)",
        PYTHONPATH=f"{installed}:{d.PACKAGES}",
    )
    assert said.startswith(str(installed))


def test_tensorcx_never_imports_torch():
    python(
        "import sys, numpy as np, tensorcx as cx;"
        "cx.put('x', {'a': np.ones(3)}); cx.get('x')['a'].numpy(); cx.delete('x');"
        "import tensorcx.cli, tensorcx._safetensors, tensorcx._doctor;"
        "assert 'torch' not in sys.modules"
    )


def test_every_public_name_has_its_documentation():
    assert bridge.__all__ == sorted(bridge.__all__)
    assert all(getattr(bridge, name).__doc__ for name in bridge.__all__)
