/* receiver.c - _core.Receiver: a channel's handle that receives */
#include "core.h"

/* The next message. NULL and an exception; where nothing came in time, *ret_status is TCX_TIMEOUT
 * and no exception is set. */
static PyObject *receive(struct core_state *state, PyObject *self, double timeout, double spin_us,
                         int *ret_status) {
    PyObject *client = ((struct channel_object *)self)->client;
    tcx_tensor_t *tensor = NULL;
    tcx_bundle_t *bundle = NULL;
    tcx_channel_t *channel = channel_of(self);
    int status = tcx_channel_recv(channel, TCX_AT_ONCE, spin_us, &tensor, &bundle);
    if (status == TCX_TIMEOUT) {
        CORE_BEGIN_ASKING
        status = tcx_channel_recv(channel, timeout, spin_us, &tensor, &bundle);
        CORE_END_ASKING
    }
    *ret_status = status;
    if (status)
        return status == TCX_TIMEOUT ? NULL : core_raise(state, status);
    return tensor ? tensor_wrap(state, client, tensor) : bundle_wrap(state, client, bundle);
}

static PyObject *receiver_recv(CORE_METHOD_ARGUMENTS) {
    static const struct arguments what = {"recv", {"timeout", "spin_us"}, 1, 0};
    struct core_state *state = core_state(type);
    PyObject *said[ARGUMENTS_MAX];
    double timeout;
    if (!core_arguments(&what, args, nargs, kwnames, said) ||
        !timeout_from_python(said[0], &timeout))
        return NULL;
    double spin_us = said[1] ? PyFloat_AsDouble(said[1]) : 0;
    if (spin_us == -1 && PyErr_Occurred())
        return NULL;
    int status;
    PyObject *message = receive(state, self, timeout, spin_us, &status);
    return status == TCX_TIMEOUT ? core_raise(state, status) : message;
}

static PyObject *receiver_try_recv(CORE_METHOD_ARGUMENTS) {
    (void)args;
    if (!core_args(0, nargs, kwnames))
        return NULL;
    int status;
    PyObject *message = receive(core_state(type), self, 0, 0, &status);
    return status == TCX_TIMEOUT ? Py_NewRef(Py_None) : message;
}

static PyMethodDef methods[] = {
    CORE_METHOD("recv", receiver_recv,
                "recv($self, /, timeout=None, *, spin_us=0)\n"
                "--\n\n"
                "The next message, a Tensor or a Bundle.\n\n"
                "It lies in a buffer of the channel, which is free again when the tensor and all\n"
                "its views are gone, on whatever thread. Of a topic's message all subscribers\n"
                "have the same memory: `x.copy()` keeps or changes it. What came by reference is\n"
                "an ordinary shared tensor.\n\n"
                "Waits for ever, `timeout` seconds, or with 0 not at all; then Timeout.\n"
                "`spin_us`: for how many microseconds to look with all the processor's might\n"
                "before sleeping. ChannelClosed when the channel was shut down and nothing is\n"
                "left, or this handle was closed; DaemonLost."),
    CORE_METHOD("try_recv", receiver_try_recv,
                "try_recv($self, /)\n"
                "--\n\n"
                "The next message, or None if there is none now; otherwise as recv()."),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {{Py_tp_methods, methods}, {0, NULL}};

PyType_Spec receiver_spec = {
    .name = "tensorcx._core.Receiver",
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
