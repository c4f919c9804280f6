/*
 * python.c - a Python whose process has the sanitizers from its beginning
 *
 * The interpreter itself is the ordinary one, a shared library. Better than to preload the
 * sanitizers, which every other program that a test starts would get as well. Knows Python and
 * NumPy, not tensorcx.
 */
#include <Python.h>
#include <sanitizer/lsan_interface.h>

/* LeakSanitizer's switch, where that is part of what is linked. */
#pragma weak __lsan_disable
#pragma weak __lsan_enable

/* NumPy never frees some of what it makes when it is imported. */
static void import_numpy(void) {
    if (__lsan_disable) {
        __lsan_disable();
    }
    Py_XDECREF(PyImport_ImportModule("numpy"));
    PyErr_Clear();
    if (__lsan_enable) {
        __lsan_enable();
    }
}

int main(int argc, char **argv) {
    PyConfig config;
    PyStatus status;

    PyConfig_InitPythonConfig(&config);
    status = PyConfig_SetBytesArgv(&config, argc, argv);
    if (!PyStatus_Exception(status)) {
        status = Py_InitializeFromConfig(&config);
    }
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status)) {
        Py_ExitStatusException(status);
    }
    import_numpy();
    return Py_RunMain();
}
