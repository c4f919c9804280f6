/* device.c - devices and streams as Python says them: "cuda:0", and the numbers of DLPack */
#include "core.h"

int device_is_cuda(tcx_device_t device) {
    return device.type == TCX_CUDA;
}

/* The number in "cuda:7"; -1: it is no such text. */
static int ordinal_of(const char *text) {
    if (!strcmp(text, "cuda"))
        return 0;
    if (strncmp(text, "cuda:", 5) || !text[5] || strlen(text) > 9)
        return -1;
    int ordinal = 0;
    for (const char *digit = text + 5; *digit; digit++) {
        if (*digit < '0' || *digit > '9')
            return -1;
        ordinal = 10 * ordinal + *digit - '0';
    }
    return ordinal;
}

int device_from_python(struct core_state *state, PyObject *object, tcx_device_t *ret_device) {
    tcx_device_t device = {0, 0};
    if (object != Py_None) {
        if (!PyUnicode_Check(object)) {
            PyErr_Format(PyExc_TypeError, "device must be a str such as 'cuda:0' or None, not %R",
                         object);
            return -1;
        }
        const char *text = PyUnicode_AsUTF8AndSize(object, NULL);
        if (!text)
            return -1;
        device = strcmp(text, "cpu") ? (tcx_device_t){TCX_CUDA, ordinal_of(text)}
                                     : (tcx_device_t){TCX_CPU, 0};
    }
    if (device.id < 0) {
        core_raise_exchange(state, "device %R: there are 'cpu', 'cuda:0', 'cuda:1' and so on",
                            object);
        return -1;
    }
    *ret_device = device;
    return 0;
}

PyObject *device_to_python(tcx_device_t device) {
    if (!device_is_cuda(device))
        return PyUnicode_FromString("cpu");
    if (device.id < 0) /* this process does not see it */
        return PyUnicode_FromString("cuda:?");
    return PyUnicode_FromFormat("cuda:%d", (int)device.id);
}

int stream_from_python(struct core_state *state, PyObject *object, int may_skip,
                       intptr_t *ret_stream) {
    if (!object || object == Py_None) {
        *ret_stream = 0;
        return 0;
    }
    if (!PyLong_Check(object) || PyBool_Check(object)) {
        PyErr_Format(PyExc_TypeError, "stream must be an int as in DLPack or None, not %R", object);
        return -1;
    }
    intptr_t number = PyLong_AsSsize_t(object); /* an address of a process is never negative */
    if (number == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        number = 0; /* too large, and so no stream */
    }
    if (number == 0 || number < -1 || (number == -1 && !may_skip)) {
        core_raise_exchange(state,
                            "stream %R: 1 is the legacy default stream, 2 the per-thread default "
                            "stream, anything else a stream's address%s",
                            object, may_skip ? ", and -1 waits for nothing" : "");
        return -1;
    }
    *ret_stream = number;
    return 0;
}

PyObject *device_call(PyObject *module, PyObject *args) {
    (void)module;
    Py_ssize_t count = PyTuple_Size(args);
    tcx_device_t device = {.type = TCX_CUDA};
    if (count < 2) {
        PyErr_SetString(PyExc_TypeError, "on_device() takes an ordinal and a function");
        return NULL;
    }
    device.id = (int32_t)PyLong_AsLong(PyTuple_GetItem(args, 0));
    if (PyErr_Occurred())
        return NULL;
    int is_current;
    CORE_BEGIN_ASKING
    is_current = tcx_device_push(device) == TCX_OK;
    CORE_END_ASKING
    PyObject *rest = PyTuple_GetSlice(args, 2, count);
    PyObject *result = rest ? PyObject_CallObject(PyTuple_GetItem(args, 1), rest) : NULL;
    Py_XDECREF(rest);
    if (is_current)
        tcx_device_pop(device);
    return result;
}

static PyObject *entry_to_python(const tcx_device_entry_t *entry) {
    return Py_BuildValue("{s:N, s:s, s:s, s:s, s:K, s:K, s:K, s:K, s:K, s:K, s:K}", /* */
                         "device", device_to_python(entry->device), "uuid", entry->uuid, "name",
                         entry->name, "mode", entry->mode, "total_bytes", entry->total_bytes,
                         "capacity_bytes", entry->capacity_bytes, "committed_bytes",
                         entry->committed_bytes, "warm_bytes", entry->warm_bytes, "dying_bytes",
                         entry->dying_bytes, "storages", entry->storages, "bytes", entry->bytes);
}

static int add_device(void *list, const tcx_device_entry_t *entry) {
    core_enter_python();
    return core_list_add(list, entry_to_python(entry));
}

static int ask_devices(tcx_client_t *client, void *list) {
    return tcx_devices(client, add_device, list);
}

PyObject *device_list(CORE_METHOD_ARGUMENTS) {
    return client_collect(self, type, args, nargs, kwnames, ask_devices);
}
