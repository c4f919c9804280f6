/* arguments.c - what a call was given, by position and by keyword */
#include "core.h"

#include <math.h>

int core_args(Py_ssize_t wanted, Py_ssize_t nargs, PyObject *kwnames) {
    if (nargs == wanted && (!kwnames || PyTuple_Size(kwnames) == 0))
        return 1;
    PyErr_Format(PyExc_TypeError, "expected %zd positional arguments", wanted);
    return 0;
}

/* The place of a keyword, or -1 and TypeError. */
static int place_of(const struct arguments *what, PyObject *name) {
    for (int i = 0; i < ARGUMENTS_MAX && what->names[i]; i++)
        if (!PyUnicode_CompareWithASCIIString(name, what->names[i]))
            return i;
    PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument %R", what->function,
                 name);
    return -1;
}

int core_arguments(const struct arguments *what, PyObject *const *args, Py_ssize_t nargs,
                   PyObject *kwnames, PyObject *ret_values[ARGUMENTS_MAX]) {
    if (nargs > what->positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zd positional arguments at most, not %zd",
                     what->function, what->positional, nargs);
        return 0;
    }
    for (Py_ssize_t i = 0; i < ARGUMENTS_MAX; i++)
        ret_values[i] = i < nargs ? args[i] : NULL;
    Py_ssize_t count = kwnames ? PyTuple_Size(kwnames) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int place = place_of(what, PyTuple_GetItem(kwnames, i));
        if (place < 0)
            return 0;
        if (ret_values[place]) {
            PyErr_Format(PyExc_TypeError, "%s() got two values for argument '%s'", what->function,
                         what->names[place]);
            return 0;
        }
        ret_values[place] = args[nargs + i];
    }
    for (Py_ssize_t i = 0; i < what->required; i++)
        if (!ret_values[i]) {
            PyErr_Format(PyExc_TypeError, "%s() needs an argument '%s'", what->function,
                         what->names[i]);
            return 0;
        }
    return 1;
}

int timeout_from_python(PyObject *value, double *ret_timeout) {
    *ret_timeout = -1;
    if (!value || value == Py_None)
        return 1;
    *ret_timeout = PyFloat_AsDouble(value); /* takes no text, which float() would */
    if (isfinite(*ret_timeout) && *ret_timeout >= 0)
        return 1;
    if (*ret_timeout == -1 && PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError) &&
        !PyErr_ExceptionMatches(PyExc_ValueError) && !PyErr_ExceptionMatches(PyExc_OverflowError))
        return 0;
    PyErr_Clear();
    PyErr_Format(
        PyExc_ValueError,
        "timeout must be 0 (at once), a number of seconds or None (waits for ever), not %R", value);
    return 0;
}
