/* errors.c - statuses become exceptions, and what a thread does while it has no GIL */
#include "core.h"

_Thread_local PyThreadState *core_thread;

void core_enter_python(void) {
    PyEval_RestoreThread(core_thread);
}

void core_leave_python(void) {
    core_thread = PyEval_SaveThread();
}

int core_interrupt(void *context) {
    (void)context;
    if (!core_thread)
        return 0;
    core_enter_python();
    int raised = PyErr_CheckSignals();
    core_leave_python();
    return raised;
}

PyObject *core_raise(struct core_state *state, int status) {
    if (PyErr_Occurred())
        return NULL;
    PyObject *class = PyExc_SystemError; /* of a library newer than we are, or before register() */
    if (state->errors && status > 0 && status < PyTuple_Size(state->errors))
        class = PyTuple_GetItem(state->errors, status);
    PyObject *text = text_to_python(tcx_error());
    if (text) {
        PyErr_SetObject(class, text);
        Py_DECREF(text);
    }
    return NULL;
}

int core_list_add(PyObject *list, PyObject *item) {
    int failed = !item || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    core_leave_python();
    return failed;
}

PyObject *core_list_or_raise(struct core_state *state, int status, PyObject *list) {
    if (!status && !PyErr_Occurred())
        return list;
    core_raise(state, status);
    Py_DECREF(list);
    return NULL;
}

PyObject *core_raise_exchange(struct core_state *state, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    PyErr_FormatV(PyTuple_GetItem(state->errors, TCX_EXCHANGE), format, arguments);
    va_end(arguments);
    return NULL;
}

void core_drop(PyObject *object) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Py_DECREF(object);
    PyErr_Restore(type, value, traceback);
}

void core_tensor_unref(tcx_tensor_t *tensor) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    tcx_tensor_unref(tensor);
    PyErr_Restore(type, value, traceback);
}

void core_bundle_unref(tcx_bundle_t *bundle) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    tcx_bundle_unref(bundle);
    PyErr_Restore(type, value, traceback);
}
