#!/bin/sh
# Runs the exchange tests, and the Python tests that use NumPy, with other versions of it: numpy_matrix.sh BUILD VERSION...
# Each version has an environment of its own, made on first use (.venv-numpy-VERSION).
set -eu
build=$1
shift
for version in "$@"; do
    venv=.venv-numpy-$version
    if [ ! -e "$venv/.ready" ] || [ tools/requirements-matrix.txt -nt "$venv/.ready" ]; then
        python3 -m venv "$venv"
        "$venv/bin/pip" install -q --disable-pip-version-check -c tools/requirements-matrix.txt \
            "numpy==$version" apache-tvm-ffi pytest pytest-timeout hypothesis safetensors
        touch "$venv/.ready"
    fi
    echo "== NumPy $version"
    PYTHONPATH=$build/python "$venv/bin/python" -m pytest -q -p no:cacheprovider -m 'not slow' \
        tests/python --ignore=tests/python/cuda --ignore-glob='*_demo.py' --ignore-glob='*_doctor.py' --ignore-glob='*_examples_*.py' \
        --ignore-glob='*_fork.py' --ignore-glob='*_in_children.py' --ignore-glob='*_manual.py' \
        --ignore-glob='*_multiprocessing.py' --ignore-glob='*_channel_lifetime.py'
done
