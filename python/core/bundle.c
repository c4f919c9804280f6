/* bundle.c - _core.Bundle: one handle on a bundle of the library; the Python half builds the tree
 */
#include "core.h"

#include <stddef.h>

PyObject *bundle_wrap(struct core_state *state, PyObject *client, tcx_bundle_t *bundle) {
    PyObject *object = PyType_GenericAlloc((PyTypeObject *)state->bundle_class, 0);
    if (!object) {
        core_bundle_unref(bundle);
        return NULL;
    }
    struct bundle_object *self = (struct bundle_object *)object;
    self->client = Py_NewRef(client);
    self->bundle = bundle;
    return object;
}

tcx_bundle_t *bundle_get(PyObject *self) {
    tcx_bundle_t *bundle = ((struct bundle_object *)self)->bundle;
    if (!bundle)
        PyErr_SetString(PyExc_ValueError, "the bundle is closed");
    return bundle;
}

static PyObject *bundle_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)type, (void)args, (void)kwargs;
    PyErr_SetString(PyExc_TypeError, "bundles are made by put() and get()");
    return NULL;
}

static int bundle_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct bundle_object *)self)->client);
    return 0;
}

static void bundle_dealloc(PyObject *object) {
    struct bundle_object *self = (struct bundle_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    core_bundle_unref(self->bundle);
    Py_XDECREF(self->client);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *bundle_close(PyObject *object, PyObject *unused) {
    (void)unused;
    struct bundle_object *self = (struct bundle_object *)object;
    tcx_bundle_t *bundle = self->bundle;
    self->bundle = NULL;
    core_bundle_unref(bundle);
    Py_RETURN_NONE;
}

/* A new handle on the same bundle. */
static PyObject *bundle_handle(CORE_METHOD_ARGUMENTS) {
    (void)args;
    tcx_bundle_t *bundle = bundle_get(self);
    if (!core_args(0, nargs, kwnames) || !bundle)
        return NULL;
    PyObject *client = ((struct bundle_object *)self)->client;
    return bundle_wrap(core_state(type), client, tcx_bundle_ref(bundle));
}

static PyObject *path_to_python(const char *const *path, size_t depth) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)depth);
    for (size_t i = 0; tuple && i < depth; i++) {
        PyObject *key = PyUnicode_FromString(path[i]);
        if (!key || PyTuple_SetItem(tuple, (Py_ssize_t)i, key) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* _items(): [(path, whether it is a tensor)], in order */
static PyObject *bundle_items(PyObject *self, PyObject *unused) {
    (void)unused;
    tcx_bundle_t *bundle = bundle_get(self);
    PyObject *list = bundle ? PyList_New(0) : NULL;
    size_t count = bundle ? tcx_bundle_count(bundle) : 0;
    for (size_t i = 0; list && i < count; i++) {
        const char *const *path;
        size_t depth;
        tcx_tensor_t *tensor;
        tcx_bundle_item(bundle, i, &path, &depth, &tensor);
        PyObject *keys = path_to_python(path, depth);
        PyObject *item = keys ? Py_BuildValue("(NO)", keys, tensor ? Py_True : Py_False) : NULL;
        if (!item || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

/* _tensor(index: int) */
static PyObject *bundle_tensor(CORE_METHOD_ARGUMENTS) {
    tcx_bundle_t *bundle = bundle_get(self);
    if (!bundle || !core_args(1, nargs, kwnames))
        return NULL;
    size_t index = PyLong_AsSize_t(args[0]);
    if (PyErr_Occurred())
        return NULL;
    tcx_tensor_t *tensor = NULL;
    if (index < tcx_bundle_count(bundle)) {
        const char *const *path;
        size_t depth;
        tcx_bundle_item(bundle, index, &path, &depth, &tensor);
    }
    if (!tensor) {
        PyErr_SetString(PyExc_IndexError, "no tensor there");
        return NULL;
    }
    PyObject *client = ((struct bundle_object *)self)->client;
    return tensor_wrap(core_state(type), client, tcx_tensor_ref(tensor));
}

/* 0, or -1 and ValueError. */
static int info_of(PyObject *self, tcx_info_t *ret_info) {
    tcx_bundle_t *bundle = bundle_get(self);
    if (!bundle)
        return -1;
    tcx_bundle_info(bundle, ret_info);
    return 0;
}

/* Attributes that are a field of tcx_info_t, at offset `field`. */
static PyObject *get_number(PyObject *self, void *field) {
    tcx_info_t info;
    if (info_of(self, &info) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(*(uint64_t *)((char *)&info + (size_t)field));
}

static PyObject *get_flag(PyObject *self, void *field) {
    tcx_info_t info;
    return info_of(self, &info) < 0 ? NULL
                                    : PyBool_FromLong(*(int *)((char *)&info + (size_t)field));
}

static PyObject *get_name(PyObject *self, void *closure) {
    (void)closure;
    tcx_info_t info;
    if (info_of(self, &info) < 0)
        return NULL;
    return info.name ? PyUnicode_FromString(info.name) : Py_NewRef(Py_None);
}

static PyObject *get_client(PyObject *self, void *closure) {
    (void)closure;
    return Py_NewRef(((struct bundle_object *)self)->client);
}

static PyObject *get_closed(PyObject *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(!((struct bundle_object *)self)->bundle);
}

static PyMethodDef methods[] = {
    {"close", bundle_close, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Ends this handle. Tensors taken from it, and views of them, live on."},
    {"_items", bundle_items, METH_NOARGS, NULL},
    CORE_METHOD("_handle", bundle_handle, NULL),
    CORE_METHOD("_tensor", bundle_tensor, NULL),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"name", get_name, NULL, "The name it was put under or got by, or None.", NULL},
    {"version", get_number, NULL, "Version of that name; 0: no name.",
     (void *)offsetof(tcx_info_t, version)},
    {"nbytes", get_number, NULL, "Bytes of all its tensors.", (void *)offsetof(tcx_info_t, nbytes)},
    {"storage_id", get_number, NULL, "Identifies the storage that its tensors are packed in.",
     (void *)offsetof(tcx_info_t, storage_id)},
    {"readonly", get_flag, NULL, "Whether nobody may write through it.",
     (void *)offsetof(tcx_info_t, readonly)},
    {"is_shared", get_flag, NULL,
     "Whether the memory belongs to a daemon that this process is connected to.",
     (void *)offsetof(tcx_info_t, is_shared)},
    {"closed", get_closed, NULL, "Whether this handle is closed.", NULL},
    {"_client", get_client, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, bundle_new},  {Py_tp_dealloc, bundle_dealloc}, {Py_tp_traverse, bundle_traverse},
    {Py_tp_methods, methods}, {Py_tp_getset, getters},         {0, NULL},
};

PyType_Spec bundle_spec = {
    .name = "tensorcx._core.Bundle",
    .basicsize = sizeof(struct bundle_object),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
