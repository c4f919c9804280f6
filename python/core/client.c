/* client.c - _core.Client: what asks the daemon */
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

static PyObject *client_socket(PyObject *self, void *closure) {
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

static PyObject *client_connect(CORE_METHOD_ARGUMENTS) {
    (void)args;
    tcx_client_t *client = client_usable(self);
    if (!client || !core_args(0, nargs, kwnames))
        return NULL;
    int status;
    CORE_BEGIN_ASKING
    status = tcx_client_connect(client);
    CORE_END_ASKING
    return status ? core_raise(core_state(type), status) : Py_NewRef(Py_None);
}

static PyObject *client_stop(CORE_METHOD_ARGUMENTS) {
    (void)args;
    tcx_client_t *client = client_usable(self);
    if (!client || !core_args(0, nargs, kwnames))
        return NULL;
    int status;
    CORE_BEGIN_ASKING
    status = tcx_stop(client);
    CORE_END_ASKING
    return status ? core_raise(core_state(type), status) : Py_NewRef(Py_None);
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
    const char *name;
    tcx_client_t *client = client_usable(self);
    if (!client || !core_args(1, nargs, kwnames) || !(name = text_from_python(args[0])))
        return NULL;
    int status;
    CORE_BEGIN_ASKING
    status = tcx_delete(client, name);
    CORE_END_ASKING
    return status ? core_raise(core_state(type), status) : Py_NewRef(Py_None);
}

/* Adds to the list `context`, without the GIL. Non-zero stops: an exception is set. */
static int add_entry(void *context, const tcx_entry_t *entry) {
    core_enter_python();
    PyObject *item = NULL;
    PyObject *shape =
        entry->is_bundle ? Py_NewRef(Py_None) : shape_to_python(entry->ndim, entry->shape, 1);
    PyObject *format =
        entry->is_bundle ? Py_NewRef(Py_None) : PyUnicode_FromString(format_of(entry->dtype));
    PyObject *device = entry->is_bundle ? Py_NewRef(Py_None) : device_to_python(entry->device);
    if (shape && format && device)
        item = Py_BuildValue(
            "{s:s, s:K, s:K, s:K, s:O, s:O, s:O, s:O, s:d, s:d, s:K, s:i, s:O, s:O}", /* */
            "name", entry->name, "version", entry->version, "storage_id", entry->storage_id,
            "nbytes", entry->nbytes, "is_bundle", entry->is_bundle ? Py_True : Py_False, "readonly",
            entry->readonly ? Py_True : Py_False, "ephemeral",
            entry->ephemeral ? Py_True : Py_False, "shape", shape, "age", entry->age, "ttl",
            entry->ttl_left, "holders", entry->holders, "publisher", entry->publisher, "format",
            format, "device", device);
    int failed = !item || PyList_Append(context, item) < 0;
    Py_XDECREF(item);
    Py_XDECREF(shape);
    Py_XDECREF(format);
    Py_XDECREF(device);
    core_leave_python();
    return failed;
}

/* The same with nothing but the name. */
static int add_name(void *context, const tcx_entry_t *entry) {
    core_enter_python();
    PyObject *name = PyUnicode_FromString(entry->name);
    int failed = !name || PyList_Append(context, name) < 0;
    Py_XDECREF(name);
    core_leave_python();
    return failed;
}

/* _stat(name: str): a list of one */
static PyObject *client_stat(CORE_METHOD_ARGUMENTS) {
    const char *name;
    PyObject *list;
    tcx_client_t *client = client_usable(self);
    if (!client || !core_args(1, nargs, kwnames) || !(name = text_from_python(args[0])) ||
        !(list = PyList_New(0)))
        return NULL;
    int status;
    CORE_BEGIN_ASKING
    status = tcx_stat(client, name, add_entry, list);
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

/* -------------------------------------------------------------------------------- the daemon */

static PyObject *client_stats(CORE_METHOD_ARGUMENTS) {
    (void)args;
    tcx_client_t *client = client_usable(self);
    if (!client || !core_args(0, nargs, kwnames))
        return NULL;
    tcx_stats_t s;
    char version[64], boot_id[17];
    int status;
    CORE_BEGIN_ASKING
    status = tcx_stats(client, &s);
    CORE_END_ASKING
    if (status)
        return core_raise(core_state(type), status);
    tcx_daemon_version(client, version, sizeof version);
    PyOS_snprintf(boot_id, sizeof boot_id, "%016llx", (unsigned long long)s.boot_id);
    return Py_BuildValue(
        "{s:K, s:s, s:s, s:N, s:s, s:K, s:K, s:K, s:K, s:K, s:K, s:K, s:K, s:K, s:K, s:K, s:K, s:K,"
        " s:K, s:K, s:K, s:K}",
        "pid", s.pid, "version", version, "boot_id", boot_id, "socket", client_socket(self, NULL),
        "backing", s.backing ? "memfd" : "posix", "uptime_ms", s.uptime_ms, "clients", s.clients,
        "holds", s.holds, "storages", s.storages, "bytes", s.bytes, "names", s.names, "tickets",
        s.tickets, "channels", s.channels, "segments", s.segments, "committed_bytes",
        s.committed_bytes, "warm_bytes", s.warm_bytes, "capacity_bytes", s.capacity_bytes,
        "waiting", s.waiting, "last_version", s.version, "requests", s.requests, "dropped",
        s.dropped, "devices", s.devices);
}

/* As add_entry(). */
static int add_peer(void *context, const tcx_peer_t *peer) {
    core_enter_python();
    PyObject *program =
        PyUnicode_DecodeUTF8(peer->program, (Py_ssize_t)strlen(peer->program), "replace");
    PyObject *item =
        program
            ? Py_BuildValue("{s:K, s:i, s:i, s:O, s:K, s:K, s:K, s:K, s:K, s:d, s:O, s:O}", /* */
                            "id", peer->id, "pid", peer->pid, "uid", peer->uid, "program", program,
                            "tensors", peer->storages, "bytes", peer->bytes, "device_bytes",
                            peer->device_bytes, "tickets", peer->tickets, "waiting", peer->waiting,
                            "age", peer->age, "connected", peer->connected ? Py_True : Py_False,
                            "is_self", peer->is_self ? Py_True : Py_False)
            : NULL;
    int failed = !item || PyList_Append(context, item) < 0;
    Py_XDECREF(item);
    Py_XDECREF(program);
    core_leave_python();
    return failed;
}

static PyObject *client_clients(CORE_METHOD_ARGUMENTS) {
    (void)args;
    PyObject *list;
    tcx_client_t *client = client_usable(self);
    if (!client || !core_args(0, nargs, kwnames) || !(list = PyList_New(0)))
        return NULL;
    int status;
    CORE_BEGIN_ASKING
    status = tcx_clients(client, add_peer, list);
    CORE_END_ASKING
    return core_list_or_raise(core_state(type), status, list);
}

/* -------------------------------------------------------------------------------------- type */

static PyMethodDef methods[] = {
    CORE_METHOD("connect", client_connect, "Connects to the daemon now, if that has not happened."),
    CORE_METHOD("close", client_close,
                "Ends the client: its connection goes with the last of its tensors, which stay "
                "valid. What asks the daemon raises ValueError afterwards."),
    CORE_METHOD("stop", client_stop,
                "Ends the daemon in good order: mapped memory stays valid, names are gone."),
    CORE_METHOD("stats", client_stats, "Counters of the daemon, a flat mapping."),
    CORE_METHOD("clients", client_clients, "Every client of the daemon and what it holds."),
    CORE_METHOD(
        "devices", device_list,
        "The daemon's CUDA devices, and what it has there. Its driver is loaded if that has "
        "not happened; DeviceError if it has none."),
    CORE_METHOD("delete", client_delete,
                "Removes a name; its memory is free when its last user is gone."),
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
    {"_closed", client_closed, NULL, NULL, NULL},
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
