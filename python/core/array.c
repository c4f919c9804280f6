/* array.c - dtypes, text and shapes of Python as the library wants them, and back */
#include "core.h"

/* ------------------------------------------------------------------------------------ dtypes */

/* Formats of NumPy's own types: "l", not "q", is int64. */
static const struct {
    tcx_dtype_t dtype;
    const char *format;
} formats[] = {
    {{TCX_BOOL, 8, 1}, "?"},      {{TCX_INT, 8, 1}, "b"},        {{TCX_INT, 16, 1}, "h"},
    {{TCX_INT, 32, 1}, "i"},      {{TCX_INT, 64, 1}, "l"},       {{TCX_UINT, 8, 1}, "B"},
    {{TCX_UINT, 16, 1}, "H"},     {{TCX_UINT, 32, 1}, "I"},      {{TCX_UINT, 64, 1}, "L"},
    {{TCX_FLOAT, 16, 1}, "e"},    {{TCX_FLOAT, 32, 1}, "f"},     {{TCX_FLOAT, 64, 1}, "d"},
    {{TCX_COMPLEX, 64, 1}, "Zf"}, {{TCX_COMPLEX, 128, 1}, "Zd"},
};

enum { FORMATS = sizeof formats / sizeof *formats };

const char *format_of(tcx_dtype_t dtype) {
    for (size_t i = 0; i < FORMATS; i++)
        if (formats[i].dtype.code == dtype.code && formats[i].dtype.bits == dtype.bits)
            return formats[i].format;
    return "B"; /* not reached: the library gives no tensor of another dtype */
}

/* The kind a format stands for, whatever its size; -1: none that can be stored. */
static int kind_of(const char *format) {
    if (*format == 'Z' && format[1] && strchr("fd", format[1]) && !format[2])
        return TCX_COMPLEX;
    if (!*format || format[1])
        return -1;
    if (strchr("bhilqn", *format))
        return TCX_INT;
    if (strchr("BHILQN", *format))
        return TCX_UINT;
    if (strchr("efd", *format))
        return TCX_FLOAT;
    return *format == '?' ? TCX_BOOL : -1;
}

int format_parse(struct core_state *state, const char *format, Py_ssize_t itemsize,
                 tcx_dtype_t *ret_dtype) {
    if (!format)
        format = "B";
    const char *letter = format;
    if (*letter && strchr("@=<", *letter)) /* native: all our machines are little-endian */
        letter++;
    int kind = kind_of(letter);
    tcx_dtype_t dtype = {(uint8_t)kind, (uint8_t)(itemsize * 8), 1};
    if (kind < 0 || itemsize < 1 || itemsize > 16 || !tcx_dtype_is_known(dtype)) {
        core_raise_exchange(
            state,
            "elements of buffer format '%s' (%zd bytes each) cannot be stored: bool, "
            "int and uint of 8 to 64 bits, float16 to 64 and complex64 and 128 can, "
            "all in native byte order",
            format, itemsize);
        return -1;
    }
    *ret_dtype = dtype;
    return 0;
}

int dtype_from_python(struct core_state *state, PyObject *format, tcx_dtype_t *ret_dtype) {
    const char *text = PyUnicode_AsUTF8AndSize(format, NULL);
    if (!text)
        return -1;
    for (size_t i = 0; i < FORMATS; i++)
        if (!strcmp(formats[i].format, text)) {
            *ret_dtype = formats[i].dtype;
            return 0;
        }
    core_raise_exchange(state, "format '%s' cannot be stored", text);
    return -1;
}

/* ------------------------------------------------------------------------------- text, shapes */

const char *text_from_python(PyObject *text) {
    Py_ssize_t length;
    if (!PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "a name must be a str, not %R", Py_TYPE(text));
        return NULL;
    }
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &length);
    if (!utf8 && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        PyErr_Format(PyExc_ValueError, "a name or key must be UTF-8: %A is not", text);
        return NULL;
    }
    if (utf8 && strlen(utf8) != (size_t)length) {
        PyErr_Format(PyExc_ValueError, "a name or key must not contain a 0 character: %R", text);
        return NULL;
    }
    return utf8;
}

PyObject *text_to_python(const char *text) {
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

int shape_from_python(PyObject *tuple, int64_t *ret_shape, int32_t *ret_ndim) {
    Py_ssize_t ndim = PyTuple_Size(tuple);
    if (ndim < 0)
        return -1;
    if (ndim > TCX_NDIM_MAX) {
        PyErr_Format(PyExc_ValueError, "%zd dimensions, at most %d are possible", ndim,
                     TCX_NDIM_MAX);
        return -1;
    }
    for (Py_ssize_t i = 0; i < ndim; i++) {
        ret_shape[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (ret_shape[i] == -1 && PyErr_Occurred()) {
            if (PyErr_ExceptionMatches(PyExc_OverflowError))
                PyErr_Format(PyExc_ValueError, "dimension %zd of shape %R is too large", i, tuple);
            else if (PyErr_ExceptionMatches(PyExc_TypeError))
                PyErr_Format(PyExc_TypeError, "a shape is an int or a sequence of ints, not %R",
                             tuple);
            return -1;
        }
    }
    *ret_ndim = (int32_t)ndim;
    return 0;
}

PyObject *shape_to_python(int32_t ndim, const int64_t *shape, int64_t unit) {
    PyObject *tuple = PyTuple_New(ndim);
    for (int32_t i = 0; tuple && i < ndim; i++) {
        PyObject *number = PyLong_FromLongLong(shape[i] * unit);
        if (!number || PyTuple_SetItem(tuple, i, number) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

size_t array_nbytes(const tcx_array_t *array) {
    size_t nbytes = array->dtype.bits / 8;
    for (int32_t i = 0; i < array->ndim; i++)
        nbytes *= (size_t)array->shape[i];
    return nbytes;
}
