/* channel.c - _core.Channel: one handle of a queue, of a topic, or of a subscription to one; what
 * is sent and received is in sender.c and receiver.c */
#include "core.h"

tcx_channel_t *channel_of(PyObject *self) {
    return ((struct channel_object *)self)->channel;
}

/* -------------------------------------------------------------------------------------- life */

/* The handle that owns `channel`, also on failure. */
static PyObject *channel_wrap(PyObject *class, PyObject *client, PyObject *name,
                              tcx_channel_t *channel) {
    PyObject *object = PyType_GenericAlloc((PyTypeObject *)class, 0);
    if (!object) {
        tcx_channel_close(channel);
        return NULL;
    }
    struct channel_object *self = (struct channel_object *)object;
    self->client = Py_NewRef(client);
    self->name = Py_NewRef(name);
    self->channel = channel;
    return object;
}

/* Whether `class` is a subclass of ours; else TypeError. */
static int is_class(struct core_state *state, PyObject *class) {
    int is = PyType_Check(class) && PyType_IsSubtype((PyTypeObject *)class, state->channel_type);
    if (!is)
        PyErr_SetString(PyExc_TypeError, "expected a subclass of Channel");
    return is;
}

static PyObject *channel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)type, (void)args, (void)kwargs;
    PyErr_SetString(PyExc_TypeError, "made by queue(), topic() and Topic.subscribe()");
    return NULL;
}

PyObject *channel_open(CORE_METHOD_ARGUMENTS) {
    struct core_state *state = core_state(type);
    tcx_client_t *client = client_usable(self);
    const char *name;
    if (!client || !core_args(8, nargs, kwnames) || !is_class(state, args[0]) ||
        !(name = text_from_python(args[1])))
        return NULL;
    tcx_channel_options_t options = {
        .flags = (unsigned)PyLong_AsUnsignedLong(args[2]),
        .capacity = (uint32_t)PyLong_AsUnsignedLong(args[3]),
        .buffers = (uint32_t)PyLong_AsUnsignedLong(args[4]),
        .participants = (uint32_t)PyLong_AsUnsignedLong(args[5]),
        .buffer_nbytes = PyLong_AsUnsignedLongLong(args[6]),
    };
    if (PyErr_Occurred() || device_from_python(state, args[7], &options.device) < 0)
        return NULL;
    tcx_channel_t *channel;
    int status;
    CORE_BEGIN_ASKING
    status = tcx_channel_open(client, name, &options, &channel);
    CORE_END_ASKING
    return status ? core_raise(state, status) : channel_wrap(args[0], self, args[1], channel);
}

/* _subscribe(class: type, latest: bool) */
static PyObject *channel_subscribe(CORE_METHOD_ARGUMENTS) {
    struct core_state *state = core_state(type);
    if (!core_args(2, nargs, kwnames) || !is_class(state, args[0]))
        return NULL;
    int latest = args[1] == Py_True;
    tcx_channel_t *reader;
    int status;
    CORE_BEGIN_ASKING
    status = tcx_channel_subscribe(channel_of(self), latest, &reader);
    CORE_END_ASKING
    if (status)
        return core_raise(state, status);
    struct channel_object *topic = (struct channel_object *)self;
    return channel_wrap(args[0], topic->client, topic->name, reader);
}

static int channel_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct channel_object *)self)->client);
    return 0;
}

static void channel_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    tcx_channel_close(channel_of(self));
    Py_XDECREF(((struct channel_object *)self)->name);
    Py_XDECREF(((struct channel_object *)self)->client);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* The library's handle stays until the object goes: other threads may be waiting. */
static PyObject *channel_close(PyObject *self, PyObject *unused) {
    (void)unused;
    ((struct channel_object *)self)->is_closed = 1;
    tcx_channel_leave(channel_of(self));
    Py_RETURN_NONE;
}

static PyObject *channel_shutdown(CORE_METHOD_ARGUMENTS) {
    (void)args;
    if (!core_args(0, nargs, kwnames))
        return NULL;
    int status;
    CORE_BEGIN_ASKING
    status = tcx_channel_shutdown(channel_of(self));
    CORE_END_ASKING
    return status ? core_raise(core_state(type), status) : Py_NewRef(Py_None);
}

/* ------------------------------------------------------------------------------------ looking */

static PyObject *channel_info(CORE_METHOD_ARGUMENTS) {
    (void)type, (void)args;
    if (!core_args(0, nargs, kwnames))
        return NULL;
    tcx_channel_info_t info;
    CORE_BEGIN_ASKING
    tcx_channel_info(channel_of(self), &info);
    CORE_END_ASKING
    return Py_BuildValue("{s:I, s:I, s:I, s:I, s:K, s:K, s:K, s:I, s:I, s:I, s:K, s:N, s:N}", /* */
                         "flags", info.flags, "capacity", info.capacity, "buffers", info.buffers,
                         "participants", info.participants, "buffer_bytes", info.buffer_nbytes,
                         "bytes", info.nbytes, "messages", info.messages, "depth", info.depth,
                         "handles", info.handles, "readers", info.readers, "missed", info.missed,
                         "is_shut_down", PyBool_FromLong(info.is_closed), "device",
                         device_to_python(info.device));
}

static PyObject *holder_to_python(const tcx_holder_t *holder) {
    return Py_BuildValue("{s:K, s:i, s:N, s:I, s:I}", "client", holder->client, "pid", holder->pid,
                         "program", text_to_python(holder->program), "buffers", holder->buffers,
                         "behind", holder->behind);
}

static int add_holder(void *list, const tcx_holder_t *holder) {
    core_enter_python();
    return core_list_add(list, holder_to_python(holder));
}

static PyObject *channel_holders(CORE_METHOD_ARGUMENTS) {
    (void)args;
    PyObject *list;
    if (!core_args(0, nargs, kwnames) || !(list = PyList_New(0)))
        return NULL;
    int status;
    CORE_BEGIN_ASKING
    status = tcx_channel_holders(channel_of(self), add_holder, list);
    CORE_END_ASKING
    return core_list_or_raise(core_state(type), status, list);
}

/* [{client, is_open, buffers, behind}] */
static PyObject *seated_to_python(const tcx_channel_entry_t *entry) {
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < entry->seated_count; i++) {
        const tcx_participant_t *seat = &entry->seated[i];
        PyObject *item = Py_BuildValue("{s:K, s:N, s:I, s:I}", "client", seat->client, "is_open",
                                       PyBool_FromLong(seat->is_open), "buffers", seat->buffers,
                                       "behind", seat->behind);
        if (!item || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *entry_to_python(const tcx_channel_entry_t *entry) {
    return Py_BuildValue("{s:s, s:I, s:I, s:I, s:I, s:K, s:K, s:I, s:N, s:N, s:N}", /* */
                         "name", entry->name, "flags", entry->flags, "capacity", entry->capacity,
                         "buffers", entry->buffers, "participants", entry->participants,
                         "buffer_bytes", entry->buffer_nbytes, "messages", entry->messages, "depth",
                         entry->depth, "is_shut_down", PyBool_FromLong(entry->is_closed), "seated",
                         seated_to_python(entry), "device", device_to_python(entry->device));
}

static int add_channel(void *list, const tcx_channel_entry_t *entry) {
    core_enter_python();
    return core_list_add(list, entry_to_python(entry));
}

static int ask_channels(tcx_client_t *client, void *list) {
    return tcx_channels(client, add_channel, list);
}

PyObject *channel_list(CORE_METHOD_ARGUMENTS) {
    return client_collect(self, type, args, nargs, kwnames, ask_channels);
}

static PyObject *get_name(PyObject *self, void *closure) {
    (void)closure;
    return Py_NewRef(((struct channel_object *)self)->name);
}

static PyObject *get_closed(PyObject *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(((struct channel_object *)self)->is_closed);
}

static PyObject *get_client(PyObject *self, void *closure) {
    (void)closure;
    return Py_NewRef(((struct channel_object *)self)->client);
}

/* -------------------------------------------------------------------------------------- type */

static PyMethodDef methods[] = {
    {"close", channel_close, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Ends this handle for all threads: calls that wait on it, and later ones, raise "
     "ChannelClosed. What was received stays valid, and others go on."},
    CORE_METHOD("_shutdown", channel_shutdown, NULL),
    CORE_METHOD("_subscribe", channel_subscribe, NULL),
    CORE_METHOD("_info", channel_info, NULL),
    CORE_METHOD("_holders", channel_holders, NULL),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"name", get_name, NULL, "The name it was opened by.", NULL},
    {"closed", get_closed, NULL, "Whether this handle is closed.", NULL},
    {"_client", get_client, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, channel_new}, {Py_tp_dealloc, channel_dealloc}, {Py_tp_traverse, channel_traverse},
    {Py_tp_methods, methods}, {Py_tp_getset, getters},          {0, NULL},
};

PyType_Spec channel_spec = {
    .name = "tensorcx._core.Channel",
    .basicsize = sizeof(struct channel_object),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
