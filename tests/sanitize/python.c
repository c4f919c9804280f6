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

/* What threads have that an interpreter leaves where they are when it ends, is nobody's any more:
 * then leaks are not looked for. */
static int leaves_threads;

__attribute__((visibility("default"))) int __lsan_is_turned_off(void) {
    return leaves_threads;
}

static PyObject *look_at_threads(PyObject *unused, PyObject *none) {
    (void)unused, (void)none;
    leaves_threads =
        PyThreadState_Next(PyInterpreterState_ThreadHead(PyInterpreterState_Get())) != NULL;
    Py_RETURN_NONE;
}

/* The first that is registered is the last that runs. */
static void look_at_threads_at_the_end(void) {
    static PyMethodDef look = {"look_at_threads", look_at_threads, METH_NOARGS, NULL};
    PyObject *atexit_module = PyImport_ImportModule("atexit");
    PyObject *function = PyCFunction_New(&look, NULL);

    Py_XDECREF(PyObject_CallMethod(atexit_module, "register", "O", function));
    Py_XDECREF(function);
    Py_XDECREF(atexit_module);
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
    look_at_threads_at_the_end();
    import_numpy();
    return Py_RunMain();
}
