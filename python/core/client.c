/* client.c - _core.Client: its life, and the methods for memory and names */
#include "core.h"

static tcx_client_t *client_of(PyObject *self) {
    return ((struct client_object *)self)->client;
}

tcx_client_t *client_usable(PyObject *self) {
    struct client_object *object = (struct client_object *)self;
    if (!object->is_closed)
        return object->client;
    PyErr_SetString(PyExc_ValueError, "the client is closed");
    return NULL;
}

/* ------------------------------------------------------------------------------------- life */

static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"path", "autostart", NULL};
    PyObject *path = Py_None, *bytes = NULL;
    int autostart = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|Op:Client", keywords, &path, &autostart) ||
        (path != Py_None && !PyUnicode_FSConverter(path, &bytes)))
        return NULL;

    tcx_client_options_t options = {
        .socket = bytes ? PyBytes_AsString(bytes) : NULL,
        .no_autostart = !autostart,
        .interrupt = core_interrupt,
    };
    tcx_client_t *client;
    int status = tcx_client_open(&options, &client);
    Py_XDECREF(bytes);
    if (status == TCX_OUT_OF_MEMORY)
        return PyErr_NoMemory();
    if (status) { /* the module's state is not within reach of a subclass's tp_new */
        PyErr_SetString(PyExc_ValueError, tcx_error());
        return NULL;
    }
    struct client_object *self = (struct client_object *)PyType_GenericAlloc(type, 0);
    if (self)
        self->client = client;
    else
        tcx_client_close(client);
    return (PyObject *)self;
}

static void client_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    tcx_client_close(client_of(self));
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

PyObject *client_socket(PyObject *self, void *closure) {
    (void)closure;
    return PyUnicode_DecodeFSDefault(tcx_client_socket(client_of(self)));
}

/* The library's client stays until the object goes: other threads may be asking. */
static PyObject *client_close(CORE_METHOD_ARGUMENTS) {
    (void)type;
    (void)args;
    if (!core_args(0, nargs, kwnames))
        return NULL;
    ((struct client_object *)self)->is_closed = 1;
    CORE_BEGIN_ASKING
    tcx_client_disconnect(client_of(self));
    CORE_END_ASKING
    Py_RETURN_NONE;
}

static PyObject *client_closed(PyObject *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(((struct client_object *)self)->is_closed);
}

PyObject *client_do(CORE_METHOD_ARGUMENTS, int (*ask)(tcx_client_t *client)) {
    (void)args;
    tcx_client_t *client = client_usable(self);
    if (!client || !core_args(0, nargs, kwnames))
        return NULL;
    int status;
    CORE_BEGIN_ASKING
    status = ask(client);
    CORE_END_ASKING
    return status ? core_raise(core_state(type), status) : Py_NewRef(Py_None);
}

PyObject *client_collect(CORE_METHOD_ARGUMENTS, int (*ask)(tcx_client_t *client, void *list)) {
    (void)args;
    PyObject *list;
    tcx_client_t *client = client_usable(self);
    if (!client || !core_args(0, nargs, kwnames) || !(list = PyList_New(0)))
        return NULL;
    int status;
    CORE_BEGIN_ASKING
    status = ask(client, list);
    CORE_END_ASKING
    return core_list_or_raise(core_state(type), status, list);
}

static PyObject *client_connect(CORE_METHOD_ARGUMENTS) {
    return client_do(self, type, args, nargs, kwnames, tcx_client_connect);
}

/* --------------------------------------------------------------------------------- arguments */

/* As text_from_python(); None is NULL. 0 or -1. */
static int optional_text_of(PyObject *text, const char **ret_text) {
    if (text == Py_None) {
        *ret_text = NULL;
        return 0;
    }
    const char *utf8 = text_from_python(text);
    if (!utf8)
        return -1;
    *ret_text = utf8;
    return 0;
}

/* (flags, ttl, device, stream) at `args`. 0 or -1. */
static int put_options_of(struct core_state *state, PyObject *const *args,
                          tcx_put_options_t *ret_options, intptr_t *ret_stream) {
    tcx_put_options_t options = {.flags = (unsigned)PyLong_AsLong(args[0])};
    options.ttl = PyFloat_AsDouble(args[1]);
    if (PyErr_Occurred() || device_from_python(state, args[2], &options.device) < 0)
        return -1;
    *ret_options = options;
    return stream_from_python(state, args[3], 0, ret_stream);
}

/* ------------------------------------------------------------------------------- new tensors */

/* _empty(shape: tuple, format: str, zero: bool, device: str | None) */
static PyObject *client_empty(CORE_METHOD_ARGUMENTS) {
    struct core_state *state = core_state(type);
    int64_t shape[TCX_NDIM_MAX];
    int32_t ndim;
    tcx_dtype_t dtype;
    tcx_device_t device;
    tcx_client_t *client = client_usable(self);
    if (!client || !core_args(4, nargs, kwnames) || shape_from_python(args[0], shape, &ndim) < 0 ||
        dtype_from_python(state, args[1], &dtype) < 0 ||
        device_from_python(state, args[3], &device) < 0)
        return NULL;
    int zero = args[2] == Py_True;
    tcx_tensor_t *tensor;
    int status;
    CORE_BEGIN_ASKING
    status = zero ? tcx_zeros(client, device, dtype, ndim, shape, &tensor)
                  : tcx_empty(client, device, dtype, ndim, shape, &tensor);
    CORE_END_ASKING
    return status ? core_raise(state, status) : tensor_wrap(state, self, tensor);
}

/* _put(name: str | None, source, flags: int, ttl: float, device: str | None, stream: int |
 * None) */
static PyObject *client_put(CORE_METHOD_ARGUMENTS) {
    struct core_state *state = core_state(type);
    tcx_client_t *client = client_usable(self);
    const char *name;
    tcx_put_options_t options;
    intptr_t stream;
    struct source source;
    if (!client || !core_args(6, nargs, kwnames) || optional_text_of(args[0], &name) < 0 ||
        put_options_of(state, args + 2, &options, &stream) < 0 ||
        source_open(state, args[1], &source) < 0)
        return NULL;
    source.array.stream = stream;
    tcx_tensor_t *tensor;
    int status;
    CORE_BEGIN_ASKING
    status = tcx_put(client, name, &source.array, &options, &tensor);
    CORE_END_ASKING
    /* core_raise() first: releasing a source may run code that calls the library */
    PyObject *result = status ? core_raise(state, status) : tensor_wrap(state, self, tensor);
    source_close(&source);
    return result;
}

/* _is_shared(address: int, nbytes: int) */
static PyObject *client_is_shared(CORE_METHOD_ARGUMENTS) {
    (void)type;
    if (!core_args(2, nargs, kwnames))
        return NULL;
    void *address = PyLong_AsVoidPtr(args[0]);
    size_t nbytes = PyLong_AsSize_t(args[1]);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(tcx_is_shared(client_of(self), address, nbytes));
}

/* ----------------------------------------------------------------------------------- bundles */

/* _put_bundle(name: str | None, items: list[tuple[path, source | None]], flags: int, ttl: float,
 * device: str | None, stream: int | None) */
static PyObject *client_put_bundle(CORE_METHOD_ARGUMENTS) {
    struct core_state *state = core_state(type);
    tcx_client_t *client = client_usable(self);
    const char *name;
    tcx_put_options_t options;
    intptr_t stream;
    struct items items;
    if (!client || !core_args(6, nargs, kwnames) || optional_text_of(args[0], &name) < 0 ||
        put_options_of(state, args + 2, &options, &stream) < 0 ||
        items_open(state, args[1], stream, &items) < 0)
        return NULL;
    tcx_bundle_t *bundle;
    int status;
    CORE_BEGIN_ASKING
    status = tcx_put_bundle(client, name, items.items, items.count, &options, &bundle);
    CORE_END_ASKING
    PyObject *result = status ? core_raise(state, status) : bundle_wrap(state, self, bundle);
    items_close(&items);
    return result;
}

/* ------------------------------------------------------------------------------------- names */

/* _get(name: str, timeout: float | None, newer_than: int, readonly: bool) */
static PyObject *client_get(CORE_METHOD_ARGUMENTS) {
    struct core_state *state = core_state(type);
    tcx_client_t *client = client_usable(self);
    if (!client || !core_args(4, nargs, kwnames))
        return NULL;
    const char *name = text_from_python(args[0]);
    if (!name)
        return NULL;
    tcx_get_options_t options = {
        .newer_than = PyLong_AsUnsignedLongLong(args[2]),
        .readonly = args[3] == Py_True,
    };
    if (PyErr_Occurred() || !timeout_from_python(args[1], &options.timeout))
        return NULL;
    tcx_tensor_t *tensor = NULL;
    tcx_bundle_t *bundle = NULL;
    int status;
    CORE_BEGIN_ASKING
    status = tcx_get(client, name, &options, &tensor, &bundle);
    CORE_END_ASKING
    if (status)
        return core_raise(state, status);
    return tensor ? tensor_wrap(state, self, tensor) : bundle_wrap(state, self, bundle);
}

static PyObject *client_delete(CORE_METHOD_ARGUMENTS) {
    static const struct arguments what = {"delete", {"name"}, 1, 1};
    PyObject *said[ARGUMENTS_MAX];
    const char *name;
    tcx_client_t *client = client_usable(self);
    if (!client || !core_arguments(&what, args, nargs, kwnames, said) ||
        !(name = text_from_python(said[0])))
        return NULL;
    int status;
    CORE_BEGIN_ASKING
    status = tcx_delete(client, name);
    CORE_END_ASKING
    return status ? core_raise(core_state(type), status) : Py_NewRef(Py_None);
}

/* Of a bundle dtype, shape and device are None: its tensors have them. */
static PyObject *entry_to_python(const tcx_entry_t *entry, tcx_device_t device) {
    int is_bundle = entry->is_bundle;
    return Py_BuildValue(
        "{s:s, s:K, s:K, s:K, s:N, s:N, s:N, s:N, s:d, s:d, s:K, s:i, s:N, s:N}", /* */
        "name", entry->name, "version", entry->version, "storage_id", entry->storage_id, "nbytes",
        entry->nbytes, "is_bundle", PyBool_FromLong(is_bundle), "readonly",
        PyBool_FromLong(entry->readonly), "ephemeral", PyBool_FromLong(entry->ephemeral), "shape",
        is_bundle ? Py_NewRef(Py_None) : shape_to_python(entry->ndim, entry->shape, 1), "age",
        entry->age, "ttl", entry->ttl_left, "holders", entry->holders, "publisher",
        entry->publisher, "format",
        is_bundle ? Py_NewRef(Py_None) : PyUnicode_FromString(format_of(entry->dtype)), "device",
        is_bundle ? Py_NewRef(Py_None) : device_to_python(device));
}

static int add_entry(void *list, const tcx_entry_t *entry) {
    tcx_device_t device = tcx_entry_device(entry); /* may ask the daemon, and load the driver */
    core_enter_python();
    return core_list_add(list, entry_to_python(entry, device));
}

static int add_name(void *list, const tcx_entry_t *entry) {
    core_enter_python();
    return core_list_add(list, PyUnicode_FromString(entry->name));
}

/* _stat(name: str, names_only: bool): a list of one */
static PyObject *client_stat(CORE_METHOD_ARGUMENTS) {
    const char *name;
    PyObject *list;
    tcx_client_t *client = client_usable(self);
    if (!client || !core_args(2, nargs, kwnames) || !(name = text_from_python(args[0])) ||
        !(list = PyList_New(0)))
        return NULL;
    tcx_entry_fn add = args[1] == Py_True ? add_name : add_entry;
    int status;
    CORE_BEGIN_ASKING
    status = tcx_stat(client, name, add, list);
    CORE_END_ASKING
    return core_list_or_raise(core_state(type), status, list);
}

/* _list(prefix: str, names_only: bool) */
static PyObject *client_list(CORE_METHOD_ARGUMENTS) {
    const char *prefix;
    PyObject *list;
    tcx_client_t *client = client_usable(self);
    if (!client || !core_args(2, nargs, kwnames) || !(prefix = text_from_python(args[0])) ||
        !(list = PyList_New(0)))
        return NULL;
    tcx_entry_fn add = args[1] == Py_True ? add_name : add_entry;
    int status;
    CORE_BEGIN_ASKING
    status = tcx_list(client, prefix, add, list);
    CORE_END_ASKING
    return core_list_or_raise(core_state(type), status, list);
}

/* -------------------------------------------------------------------------------------- type */

static PyMethodDef methods[] = {
    CORE_METHOD(
        "connect", client_connect,
        "connect($self, /)\n"
        "--\n\n"
        "Connects to the daemon now, if that has not happened; starts one unless the client\n"
        "was made with autostart=False. DaemonUnavailable."),
    CORE_METHOD("close", client_close,
                "close($self, /)\n"
                "--\n\n"
                "Ends the client: its connection goes with the last of its tensors, which stay\n"
                "valid. What asks the daemon raises ValueError afterwards."),
    CORE_METHOD("stop", daemon_stop,
                "stop($self, /)\n"
                "--\n\n"
                "Ends the daemon in good order: mapped memory stays valid, names are gone.\n"
                "DaemonUnavailable if none runs."),
    CORE_METHOD(
        "stats", daemon_stats,
        "stats($self, /)\n"
        "--\n\n"
        "Counters of the daemon, a flat dict.\n\n"
        "Who it is: `pid`, `version`, `boot_id`, `socket`, `backing`, `uptime` in seconds.\n"
        "How many `clients`, `holds`, `storages`, `names`, `tickets`, `channels`,\n"
        "`segments`, calls `waiting` and CUDA `devices` (0: nobody has asked for them yet)\n"
        "there are. Memory of the CPU: `bytes` of live storages, `warm_bytes` that are free\n"
        "and kept, all `committed_bytes`, at most `capacity_bytes`. Since it started: the\n"
        "`last_version` given to a name, `requests`, clients `dropped` for breaking the protocol."),
    CORE_METHOD("clients", daemon_clients,
                "clients($self, /)\n"
                "--\n\n"
                "Every client of the daemon and what it holds, a dict each.\n\n"
                "`id`, `pid`, `uid`, `program`; how many `tensors` it holds, and their `bytes` on\n"
                "the CPU and `device_bytes`; `tickets` that it has sent and nobody has redeemed;\n"
                "calls that are `waiting`; its `age` in seconds; whether it is `connected` (else\n"
                "only its memory is mapped), and whether it `is_self`."),
    CORE_METHOD(
        "devices", device_list,
        "devices($self, /)\n"
        "--\n\n"
        "The daemon's CUDA devices and what it has there, a dict each.\n\n"
        "`device` as this process counts (\"cuda:?\": it does not see it), `uuid`, `name`,\n"
        "`mode` (\"vmm\", \"ipc\"); how many `storages` and their `bytes`; `warm_bytes`,\n"
        "`committed_bytes` and `capacity_bytes` as in stats(), `dying_bytes` given up and\n"
        "still mapped somewhere, `total_bytes` of the device. The driver is loaded if that\n"
        "has not happened; DeviceError if there is none."),
    CORE_METHOD(
        "delete", client_delete,
        "delete($self, /, name)\n"
        "--\n\n"
        "Removes a name; its memory is free when its last user is gone. Of a queue or topic:\n"
        "ends it. NotFound if there is none."),
    CORE_METHOD("_empty", client_empty, NULL),
    CORE_METHOD("_put", client_put, NULL),
    CORE_METHOD("_put_bundle", client_put_bundle, NULL),
    CORE_METHOD("_get", client_get, NULL),
    CORE_METHOD("_stat", client_stat, NULL),
    CORE_METHOD("_list", client_list, NULL),
    CORE_METHOD("_is_shared", client_is_shared, NULL),
    CORE_METHOD("_from_capsule", dlpack_import, NULL),
    CORE_METHOD("_ticket", ticket_make, NULL),
    CORE_METHOD("_redeem", ticket_redeem, NULL),
    CORE_METHOD("_channel", channel_open, NULL),
    CORE_METHOD("_channels", channel_list, NULL),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"socket", client_socket, NULL, "Path of the daemon's socket.", NULL},
    {"closed", client_closed, NULL, "Whether close() was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, client_new},
    {Py_tp_dealloc, client_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {0, NULL},
};

PyType_Spec client_spec = {
    .name = "tensorcx._core.Client",
    .basicsize = sizeof(struct client_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
