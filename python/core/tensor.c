/* tensor.c - _core.Tensor: one handle on a tensor of the library, and the buffer protocol */
#include "core.h"

#include <stddef.h>

/* -------------------------------------------------------------------------------------- life */

PyObject *tensor_wrap(struct core_state *state, PyObject *client, tcx_tensor_t *tensor) {
    PyObject *object = PyType_GenericAlloc((PyTypeObject *)state->tensor_class, 0);
    if (!object) {
        core_tensor_unref(tensor);
        return NULL;
    }
    struct tensor_object *self = (struct tensor_object *)object;
    self->client = Py_NewRef(client);
    self->tensor = tensor;
    return object;
}

tcx_tensor_t *tensor_get(PyObject *self) {
    tcx_tensor_t *tensor = ((struct tensor_object *)self)->tensor;
    if (!tensor)
        PyErr_SetString(PyExc_ValueError, "the tensor is closed");
    return tensor;
}

static PyObject *tensor_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)type, (void)args, (void)kwargs;
    PyErr_SetString(PyExc_TypeError, "tensors are made by empty(), zeros(), full(), asarray(), "
                                     "from_dlpack(), put() and get()");
    return NULL;
}

static int tensor_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct tensor_object *)self)->client);
    Py_VISIT(((struct tensor_object *)self)->channel);
    return 0;
}

static void tensor_dealloc(PyObject *object) {
    struct tensor_object *self = (struct tensor_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    core_tensor_unref(self->tensor);
    Py_XDECREF(self->channel);
    Py_XDECREF(self->client);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

void tensor_end(PyObject *object) {
    struct tensor_object *self = (struct tensor_object *)object;
    tcx_tensor_t *tensor = self->tensor;
    self->tensor = NULL;
    core_tensor_unref(tensor);
    Py_CLEAR(self->channel);
}

static PyObject *tensor_close(PyObject *self, PyObject *unused) {
    (void)unused;
    tensor_end(self);
    Py_RETURN_NONE;
}

static PyObject *tensor_handle(CORE_METHOD_ARGUMENTS) {
    (void)args;
    tcx_tensor_t *tensor = tensor_get(self);
    if (!core_args(0, nargs, kwnames) || !tensor)
        return NULL;
    PyObject *client = ((struct tensor_object *)self)->client;
    return tensor_wrap(core_state(type), client, tcx_tensor_ref(tensor));
}

/* _view(shape: tuple, byte_offset: int) */
static PyObject *tensor_view(CORE_METHOD_ARGUMENTS) {
    struct core_state *state = core_state(type);
    int64_t shape[TCX_NDIM_MAX];
    int32_t ndim;
    tcx_tensor_t *tensor = tensor_get(self), *view;
    if (!tensor || !core_args(2, nargs, kwnames) || shape_from_python(args[0], shape, &ndim) < 0)
        return NULL;
    unsigned long long offset = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    int status =
        tcx_tensor_view(tensor, tcx_tensor_array(tensor)->dtype, ndim, shape, offset, 0, &view);
    if (status)
        return core_raise(state, status);
    return tensor_wrap(state, ((struct tensor_object *)self)->client, view);
}

/* _fill(source): copies elements of the same dtype and shape to this memory. */
static PyObject *tensor_fill(CORE_METHOD_ARGUMENTS) {
    struct core_state *state = core_state(type);
    struct source source;
    tcx_tensor_t *tensor = tensor_get(self);
    if (!tensor || !core_args(1, nargs, kwnames) || source_open(state, args[0], &source) < 0)
        return NULL;
    int status;
    tcx_tensor_ref(tensor); /* close() may come while the GIL is away */
    CORE_BEGIN_ASKING
    status = tcx_array_copy(tcx_tensor_array(tensor), &source.array);
    CORE_END_ASKING
    if (status)
        core_raise(state, status);
    source_close(&source);
    core_tensor_unref(tensor);
    return status ? NULL : Py_NewRef(Py_None);
}

/* -------------------------------------------------------------------------------- attributes */

/* 0, or -1 and ValueError. */
static int info_of(PyObject *self, tcx_info_t *ret_info) {
    tcx_tensor_t *tensor = tensor_get(self);
    if (!tensor)
        return -1;
    tcx_tensor_info(tensor, ret_info);
    return 0;
}

/* Attributes that are a field of tcx_info_t, at offset `field`. */
static PyObject *get_number(PyObject *self, void *field) {
    tcx_info_t info;
    if (info_of(self, &info) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(*(uint64_t *)((char *)&info + (size_t)field));
}

static PyObject *get_name(PyObject *self, void *closure) {
    (void)closure;
    tcx_info_t info;
    if (info_of(self, &info) < 0)
        return NULL;
    return info.name ? PyUnicode_FromString(info.name) : Py_NewRef(Py_None);
}

static PyObject *get_device(PyObject *self, void *closure) {
    (void)closure;
    tcx_tensor_t *tensor = tensor_get(self);
    return tensor ? device_to_python(tcx_tensor_array(tensor)->device) : NULL;
}

static PyObject *get_shape(PyObject *self, void *closure) {
    (void)closure;
    tcx_tensor_t *tensor = tensor_get(self);
    if (!tensor)
        return NULL;
    const tcx_array_t *array = tcx_tensor_array(tensor);
    return shape_to_python(array->ndim, array->shape, 1);
}

static PyObject *get_strides(PyObject *self, void *closure) {
    (void)closure;
    tcx_tensor_t *tensor = tensor_get(self);
    if (!tensor)
        return NULL;
    const tcx_array_t *array = tcx_tensor_array(tensor);
    return shape_to_python(array->ndim, array->strides, array->dtype.bits / 8);
}

static PyObject *get_ndim(PyObject *self, void *closure) {
    (void)closure;
    tcx_tensor_t *tensor = tensor_get(self);
    return tensor ? PyLong_FromLong(tcx_tensor_array(tensor)->ndim) : NULL;
}

static PyObject *get_size(PyObject *self, void *closure) {
    (void)closure;
    tcx_tensor_t *tensor = tensor_get(self);
    if (!tensor)
        return NULL;
    const tcx_array_t *array = tcx_tensor_array(tensor);
    return PyLong_FromSize_t(array_nbytes(array) / (array->dtype.bits / 8));
}

static PyObject *get_nbytes(PyObject *self, void *closure) {
    (void)closure;
    tcx_tensor_t *tensor = tensor_get(self);
    return tensor ? PyLong_FromSize_t(array_nbytes(tcx_tensor_array(tensor))) : NULL;
}

static PyObject *get_readonly(PyObject *self, void *closure) {
    (void)closure;
    tcx_tensor_t *tensor = tensor_get(self);
    return tensor ? PyBool_FromLong(tcx_tensor_array(tensor)->readonly) : NULL;
}

static PyObject *get_is_shared(PyObject *self, void *closure) {
    (void)closure;
    tcx_info_t info;
    return info_of(self, &info) < 0 ? NULL : PyBool_FromLong(info.is_shared);
}

static PyObject *get_format(PyObject *self, void *closure) {
    (void)closure;
    tcx_tensor_t *tensor = tensor_get(self);
    return tensor ? PyUnicode_FromString(format_of(tcx_tensor_array(tensor)->dtype)) : NULL;
}

static PyObject *get_client(PyObject *self, void *closure) {
    (void)closure;
    return Py_NewRef(((struct tensor_object *)self)->client);
}

static PyObject *get_closed(PyObject *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(!((struct tensor_object *)self)->tensor);
}

static PyObject *tensor_data_ptr(PyObject *self, PyObject *unused) {
    (void)unused;
    tcx_tensor_t *tensor = tensor_get(self);
    return tensor ? PyLong_FromVoidPtr(tcx_tensor_array(tensor)->data) : NULL;
}

static PyObject *tensor_dlpack_device(PyObject *self, PyObject *unused) {
    (void)unused;
    tcx_tensor_t *tensor = tensor_get(self);
    if (!tensor)
        return NULL;
    tcx_device_t device = tcx_tensor_array(tensor)->device;
    return Py_BuildValue("(ii)", device.type, device.id);
}

/* ------------------------------------------------------------------------------ buffer protocol */

/* What one export needs: its own reference, so that views outlive close(), and strides in bytes. */
struct export {
    tcx_tensor_t *tensor; /* owned */
    Py_ssize_t strides[];
};

static struct export *export_create(tcx_tensor_t *tensor) {
    const tcx_array_t *array = tcx_tensor_array(tensor);
    struct export *export =
        PyMem_Malloc(sizeof *export + (size_t)array->ndim * sizeof *export->strides);
    if (!export) {
        PyErr_NoMemory();
        return NULL;
    }
    export->tensor = tcx_tensor_ref(tensor);
    for (int32_t i = 0; i < array->ndim; i++)
        export->strides[i] = array->strides[i] * (array->dtype.bits / 8);
    return export;
}

static void export_destroy(struct export *export) {
    core_tensor_unref(export->tensor);
    PyMem_Free(export);
}

/* Whether the request can be met; else BufferError. */
static int buffer_allows(const Py_buffer *view, int flags) {
    const char *problem = NULL;
    if ((flags & PyBUF_WRITABLE) && view->readonly)
        problem = "the tensor is read-only";
    else if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS &&
             !PyBuffer_IsContiguous(view, 'F'))
        problem = "the tensor is C-contiguous, Fortran order was asked for";
    if (problem)
        PyErr_SetString(PyExc_BufferError, problem);
    return !problem;
}

static int tensor_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    static char nothing; /* what views of no elements point to: NULL means other things to NumPy */
    view->obj = NULL;
    tcx_tensor_t *tensor = tensor_get(self);
    if (!tensor)
        return -1;
    const tcx_array_t *array = tcx_tensor_array(tensor);
    if (device_is_cuda(array->device)) {
        PyErr_Format(PyExc_BufferError,
                     "the tensor lies on cuda:%d, out of the CPU's reach: t.cpu() is a copy there",
                     (int)array->device.id);
        return -1;
    }
    struct export *export = export_create(tensor);
    if (!export)
        return -1;
    *view = (Py_buffer){
        .buf = array->data ? array->data : &nothing,
        .len = (Py_ssize_t)array_nbytes(array),
        .itemsize = array->dtype.bits / 8,
        .readonly = array->readonly,
        .ndim = array->ndim,
        .format = (char *)format_of(array->dtype),
        .shape = (Py_ssize_t *)array->shape,
        .strides = export->strides,
        .internal = export,
    };
    if (!buffer_allows(view, flags)) {
        export_destroy(export);
        return -1;
    }
    if (!(flags & PyBUF_FORMAT))
        view->format = NULL;
    if (!(flags & PyBUF_ND))
        view->shape = NULL;
    if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES)
        view->strides = NULL;
    view->obj = Py_NewRef(self);
    return 0;
}

static void tensor_releasebuffer(PyObject *self, Py_buffer *view) {
    (void)self;
    export_destroy(view->internal);
}

/* -------------------------------------------------------------------------------------- type */

static PyMethodDef methods[] = {
    {"close", tensor_close, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Ends this handle. The memory lives on as long as a view of it, or anybody else, needs it."},
    {"data_ptr", tensor_data_ptr, METH_NOARGS,
     "data_ptr($self, /)\n--\n\n"
     "Address of the first element, as an int."},
    {"__dlpack_device__", tensor_dlpack_device, METH_NOARGS,
     "(1, 0): the CPU; (2, n): CUDA device n."},
    CORE_METHOD(
        "__dlpack__", dlpack_export,
        "__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)\n"
        "--\n\n"
        "A DLPack capsule that shares this memory, or holds a copy if copy is True."),
    CORE_METHOD("_handle", tensor_handle, NULL),
    CORE_METHOD("_view", tensor_view, NULL),
    CORE_METHOD("_fill", tensor_fill, NULL),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"shape", get_shape, NULL, "Dimensions, a tuple.", NULL},
    {"strides", get_strides, NULL, "Bytes from one element to the next, per dimension.", NULL},
    {"ndim", get_ndim, NULL, "Number of dimensions.", NULL},
    {"size", get_size, NULL, "Number of elements.", NULL},
    {"device", get_device, NULL, "Where the memory is: \"cpu\", \"cuda:0\".", NULL},
    {"name", get_name, NULL, "The name it was put under or got by, or None.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of the elements.", NULL},
    {"readonly", get_readonly, NULL, "Whether nobody may write through this tensor.", NULL},
    {"is_shared", get_is_shared, NULL,
     "Whether the memory belongs to a daemon that this process is connected to.", NULL},
    {"version", get_number, NULL, "Version of the name it was put under or got by; 0: no name.",
     (void *)offsetof(tcx_info_t, version)},
    {"storage_id", get_number, NULL, "Identifies the shared memory; 0: private memory.",
     (void *)offsetof(tcx_info_t, storage_id)},
    {"closed", get_closed, NULL, "Whether this handle is closed.", NULL},
    {"_format", get_format, NULL, NULL, NULL},
    {"_client", get_client, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, tensor_new},
    {Py_tp_dealloc, tensor_dealloc},
    {Py_tp_traverse, tensor_traverse},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {Py_bf_getbuffer, tensor_getbuffer},
    {Py_bf_releasebuffer, tensor_releasebuffer},
    {0, NULL},
};

PyType_Spec tensor_spec = {
    .name = "tensorcx._core.Tensor",
    .basicsize = sizeof(struct tensor_object),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};
