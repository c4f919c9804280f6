"""`pip install .` in a fresh environment gives everything, and the daemon starts from there."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean checkout: what git would give a stranger, and nothing that was built here."""
    copy = tmp_path_factory.mktemp("source") / "tensorcx"
    copy.mkdir()
    listed = subprocess.check_output(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True
    )
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def environment(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    venv = tmp_path_factory.mktemp("venv")
    subprocess.check_call([sys.executable, "-m", "venv", venv])
    pip = [venv / "bin" / "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.check_call([*pip, source])
    return venv


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment with nothing that would lead to the build tree."""
    return {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}


def run(*command: object, env: dict[str, str]) -> str:
    done = subprocess.run(
        [str(c) for c in command], env=env, cwd="/", text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_fresh_environment_shares_a_tensor_and_starts_the_daemon_by_itself(
    environment: Path, bare: dict[str, str]
) -> None:
    python = environment / "bin" / "python"
    put = "import tensorcx as cx, numpy as np; cx.put('x', np.arange(6, dtype='f4'))"
    get = "import tensorcx as cx, numpy as np; print(np.from_dlpack(cx.get('x')).sum())"
    run(python, "-c", put, env=bare)
    try:
        assert run(python, "-c", get, env=bare).strip() == "15.0"
        assert "x" in run(environment / "bin" / "tensorcx", "ls", env=bare)
    finally:
        run(environment / "bin" / "tensorcx", "stop", env=bare)


def test_the_daemon_of_the_wheel_tells_its_options(environment: Path, bare: dict[str, str]) -> None:
    daemon = environment / "bin" / "tensorcxd"
    assert "--capacity" in run(daemon, "--help", env=bare)
    assert run(daemon, "--version", env=bare).startswith("tensorcxd ")


def test_c_users_find_header_and_library_in_the_wheel(environment: Path) -> None:
    [package] = environment.glob("lib/python*/site-packages/tensorcx")
    assert (package / "include" / "tensorcx.h").is_file()
    assert (package / "lib" / "libtensorcx.so.0").is_file()
    assert os.access(package / "lib" / "tensorcxd", os.X_OK)


def test_the_wheel_is_one_for_all_python_versions_and_holds_no_leftovers(
    source: Path, tmp_path: Path
) -> None:
    leftover = source / "build" / "wheel" / "python" / "tensorcx" / "deleted_long_ago.py"
    leftover.parent.mkdir(parents=True, exist_ok=True)
    leftover.write_text("")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, source]
    subprocess.check_call(pip)
    [wheel] = tmp_path.glob("*.whl")
    assert "-cp311-abi3-linux_" in wheel.name
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if "deleted_long_ago" in name]


def test_a_source_distribution_has_all_that_make_reads(
    environment: Path, source: Path, tmp_path: Path
) -> None:
    python = environment / "bin" / "python"
    subprocess.check_call([python, "-m", "pip", "install", "-q", "setuptools>=77"])
    make = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    subprocess.check_call([python, "-c", make], cwd=source, stdout=subprocess.DEVNULL)
    [archive] = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path)
    [folder] = [path for path in tmp_path.iterdir() if path.is_dir()]
    planned = subprocess.check_output(
        ["make", "-n", "all", f"HEADERS_FROM={sys.executable}"], cwd=folder, text=True
    )
    assert "_core.abi3.so" in planned


def test_make_install_gives_c_users_a_working_pkg_config(source: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    subprocess.check_call(
        ["make", "-s", "install", f"PREFIX={prefix}", f"HEADERS_FROM={sys.executable}"], cwd=source
    )
    program = tmp_path / "program.c"
    program.write_text(
        "#include <stdio.h>\n#include <tensorcx.h>\nint main(void) { puts(tcx_version()); }\n"
    )
    env = {**os.environ, "PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig"}
    flags = subprocess.check_output(
        ["pkg-config", "--cflags", "--libs", "tensorcx"], env=env, text=True
    )
    binary = tmp_path / "program"
    subprocess.check_call(["cc", program, *flags.split(), f"-Wl,-rpath,{prefix}/lib", "-o", binary])
    assert subprocess.check_output([binary], text=True).strip() == "0.1.0"
    assert os.access(prefix / "bin" / "tensorcxd", os.X_OK)
    assert (prefix / "share" / "man" / "man8" / "tensorcxd.8").is_file()
    units = prefix / "lib" / "systemd" / "user"
    assert (units / "tensorcxd.socket").is_file()
    service = (units / "tensorcxd.service").read_text()
    assert f"\nExecStart={prefix}/bin/tensorcxd\n" in service
