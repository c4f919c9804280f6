/* sender.c - _core.Sender: a channel's handle that sends */
#include "core.h"

/* ------------------------------------------------------------------------------------- loans */

/* 0, or -1 and an exception. */
static int read_shape(struct core_state *state, PyObject *said, int64_t *ret_shape,
                      int32_t *ret_ndim) {
    if (PyTuple_Check(said))
        return shape_from_python(said, ret_shape, ret_ndim);
    PyObject *tuple = PyObject_CallFunctionObjArgs(state->shape_of, said, NULL);
    int r = tuple ? shape_from_python(tuple, ret_shape, ret_ndim) : -1;
    Py_XDECREF(tuple);
    return r;
}

/* 0, or -1 and an exception. */
static int read_dtype(struct core_state *state, PyObject *said, tcx_dtype_t *ret_dtype) {
    PyObject *known = PyDict_GetItemWithError(state->formats, said);
    if (known)
        return dtype_from_python(state, known, ret_dtype);
    PyErr_Clear(); /* what cannot be hashed may still be a dtype */
    PyObject *format = PyObject_CallFunctionObjArgs(state->format_of, said, NULL);
    int r = format ? dtype_from_python(state, format, ret_dtype) : -1;
    Py_XDECREF(format);
    return r;
}

static PyObject *sender_loan(CORE_METHOD_ARGUMENTS) {
    static const struct arguments what = {"loan", {"shape", "dtype", "timeout"}, 3, 1};
    struct core_state *state = core_state(type);
    PyObject *said[ARGUMENTS_MAX];
    int64_t shape[TCX_NDIM_MAX];
    int32_t ndim;
    tcx_dtype_t dtype;
    double timeout;
    if (!core_arguments(&what, args, nargs, kwnames, said) ||
        read_shape(state, said[0], shape, &ndim) < 0 ||
        read_dtype(state, said[1] ? said[1] : (PyObject *)&PyFloat_Type, &dtype) < 0 ||
        !timeout_from_python(said[2], &timeout))
        return NULL;
    tcx_tensor_t *tensor;
    tcx_channel_t *channel = channel_of(self);
    int status = tcx_channel_loan(channel, dtype, ndim, shape, TCX_AT_ONCE, &tensor);
    if (status == TCX_TIMEOUT) {
        CORE_BEGIN_ASKING
        status = tcx_channel_loan(channel, dtype, ndim, shape, timeout, &tensor);
        CORE_END_ASKING
    }
    if (status)
        return core_raise(state, status);
    PyObject *loan = tensor_wrap(state, ((struct channel_object *)self)->client, tensor);
    if (loan)
        ((struct tensor_object *)loan)->channel = Py_NewRef(self);
    return loan;
}

/* ----------------------------------------------------------------------------------- sending */

/* A loan goes as it is, and its handle ends. */
static PyObject *send_loan(struct core_state *state, PyObject *self, PyObject *loan,
                           double timeout) {
    tcx_tensor_t *tensor = tcx_tensor_ref(tensor_get(loan));
    if (!tensor)
        return NULL;
    int status = tcx_channel_send_loan(channel_of(self), tensor, TCX_AT_ONCE);
    if (status == TCX_TIMEOUT) {
        CORE_BEGIN_ASKING
        status = tcx_channel_send_loan(channel_of(self), tensor, timeout);
        CORE_END_ASKING
    }
    if (status)
        core_raise(state, status);
    else
        tensor_end(loan);
    core_tensor_unref(tensor);
    return status ? NULL : Py_NewRef(Py_None);
}

static PyObject *send_source(struct core_state *state, PyObject *self, PyObject *object,
                             double timeout, intptr_t stream) {
    struct source source;
    int status;
    if (source_open(state, object, &source) < 0)
        return NULL;
    source.array.stream = stream;
    CORE_BEGIN_ASKING
    status = tcx_channel_send(channel_of(self), &source.array, timeout);
    CORE_END_ASKING
    if (status)
        core_raise(state, status);
    source_close(&source);
    return status ? NULL : Py_NewRef(Py_None);
}

static PyObject *send_items(struct core_state *state, PyObject *self, PyObject *list,
                            double timeout, intptr_t stream) {
    struct items items;
    int status;
    if (items_open(state, list, stream, &items) < 0)
        return NULL;
    CORE_BEGIN_ASKING
    status = tcx_channel_send_bundle(channel_of(self), items.items, items.count, timeout);
    CORE_END_ASKING
    if (status)
        core_raise(state, status);
    items_close(&items);
    return status ? NULL : Py_NewRef(Py_None);
}

static PyObject *sender_send(CORE_METHOD_ARGUMENTS) {
    static const struct arguments what = {"send", {"x", "timeout", "stream"}, 2, 1};
    struct core_state *state = core_state(type);
    PyObject *said[ARGUMENTS_MAX];
    double timeout;
    intptr_t stream;
    if (!core_arguments(&what, args, nargs, kwnames, said) ||
        !timeout_from_python(said[1], &timeout) ||
        stream_from_python(state, said[2], 0, &stream) < 0)
        return NULL;
    if (PyObject_TypeCheck(said[0], state->tensor_type))
        return ((struct tensor_object *)said[0])->channel == self
                   ? send_loan(state, self, said[0], timeout)
                   : send_source(state, self, said[0], timeout, stream);
    PyObject *message = PyObject_CallFunctionObjArgs(state->message_of, said[0], said[2], NULL);
    if (!message)
        return NULL;
    PyObject *result = PyList_Check(message) ? send_items(state, self, message, timeout, stream)
                                             : send_source(state, self, message, timeout, stream);
    core_drop(message);
    return result;
}

/* -------------------------------------------------------------------------------------- type */

static PyMethodDef methods[] = {
    CORE_METHOD("send", sender_send,
                "send($self, /, x, timeout=None, *, stream=None)\n"
                "--\n\n"
                "Sends a tensor, or a mapping as a bundle: whatever put() takes.\n\n"
                "An array is copied once, into a buffer of the channel. A loan() goes without a\n"
                "copy, and its handle is closed. What is shared already and contiguous goes by\n"
                "reference (later writes show), and so does what does not fit a buffer. `x` may\n"
                "be changed or dropped afterwards.\n\n"
                "What lies on a CUDA device is sent when it has been written: this waits for\n"
                "`stream`, a number as in DLPack, or without it, and for a loan, for all that\n"
                "this process does on the device.\n\n"
                "Waits while the channel is full: for ever, `timeout` seconds, or with 0 not at\n"
                "all; then Timeout says who is in the way. ChannelClosed once it was shut down;\n"
                "DaemonLost."),
    CORE_METHOD(
        "loan", sender_loan,
        "loan($self, /, shape, dtype='float64', timeout=None)\n"
        "--\n\n"
        "A tensor in a buffer of the channel, to be filled in place and given to send().\n\n"
        "It shows old bytes. Dropped or closed without being sent, its buffer is free\n"
        "again; once it was sent its memory is the receivers': views of it must not be\n"
        "written any more. ValueError if it is larger than a buffer; the first loan or\n"
        "message gives the channel its size, OutOfMemory if there is none for all\n"
        "buffers. Waits for a free buffer as send() does."),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {{Py_tp_methods, methods}, {0, NULL}};

PyType_Spec sender_spec = {
    .name = "tensorcx._core.Sender",
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
