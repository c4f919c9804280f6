"""The core once more: these tests pass in a forked and in a spawned process, too."""

import contextlib
import gc
import importlib
import inspect
import multiprocessing
import traceback

import daemon as d
import pytest

import tensorcx as cx

MODULES = ("test_bundle", "test_tensor", "test_lifetime", "test_ref")


def cases_of(name):
    """The tests of a module that need nothing but a daemon."""
    return [
        function
        for name, function in vars(importlib.import_module(name)).items()
        if name.startswith("test_")
        and not inspect.signature(function).parameters
        and not hasattr(function, "pytestmark")
    ]


def run_all(name, answers):
    """Answers (how many passed, what the others said)."""
    passed, failures = 0, {}
    for case in cases_of(name):
        before = cx.stats()["storages"]
        try:
            case()
            gc.collect()
            assert cx.stats()["storages"] <= before, "something is left"
            passed += 1
        except Exception:
            failures[case.__name__] = traceback.format_exc()
            for left in cx.names():
                with contextlib.suppress(cx.NotFound):
                    cx.delete(left)
    answers.put((passed, failures))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("module", MODULES)
def test_they_pass_in_a_child(module, method):
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    process = context.Process(target=run_all, args=(module, answers))
    process.start()
    passed, failures = answers.get()
    process.join(d.DEADLINE)
    assert process.exitcode == 0
    assert not failures, "\n".join(failures.values())
    assert passed == len(cases_of(module)) > 4
    answers.close()
