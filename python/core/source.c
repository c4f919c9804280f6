/* source.c - the elements of a Python object as the library wants them, borrowed */
#include "core.h"

/* Byte strides as strides in elements. A view of one field of a record has strides that are no
 * multiple of the element: it is packed here. 0, or -1 and an exception. */
static int source_set_strides(struct source *source) {
    Py_buffer *view = &source->view;
    int fits = 1;
    for (int i = 0; i < view->ndim; i++)
        fits = fits && view->strides[i] % view->itemsize == 0;

    size_t nbytes = fits ? (size_t)view->ndim * sizeof *source->strides : (size_t)view->len;
    void *memory = PyMem_Malloc(nbytes);
    if (!memory) {
        PyErr_NoMemory();
        return -1;
    }
    if (!fits) {
        source->packed = source->array.data = memory;
        return PyBuffer_ToContiguous(memory, view, view->len, 'C');
    }
    source->strides = memory;
    for (int i = 0; i < view->ndim; i++)
        source->strides[i] = view->strides[i] / view->itemsize;
    source->array.strides = source->strides;
    return 0;
}

static int source_open_buffer(struct core_state *state, PyObject *object, struct source *source) {
    Py_buffer *view = &source->view;
    if (PyObject_GetBuffer(object, view, PyBUF_RECORDS_RO) < 0) {
        view->obj = NULL;
        return -1;
    }
    if (format_parse(state, view->format, view->itemsize, &source->array.dtype) < 0)
        return -1;
    source->array.data = view->buf;
    source->array.readonly = view->readonly;
    source->array.ndim = view->ndim;
    source->array.shape = view->shape;
    if (PyBuffer_IsContiguous(view, 'C'))
        return 0;
    return source_set_strides(source);
}

int source_open(struct core_state *state, PyObject *object, struct source *ret_source) {
    struct source source = {0};
    if (PyObject_TypeCheck(object, state->tensor_type)) {
        tcx_tensor_t *tensor = tensor_get(object);
        if (!tensor)
            return -1;
        source.tensor = tcx_tensor_ref(tensor);
        source.array = *tcx_tensor_array(tensor);
    } else if (PyCapsule_CheckExact(object)) {
        if (dlpack_open(state, object, &source) < 0)
            return -1;
    } else if (source_open_buffer(state, object, &source) < 0) {
        source_close(&source);
        return -1;
    }
    *ret_source = source;
    return 0;
}

void source_close(struct source *source) {
    if (source->view.obj)
        PyBuffer_Release(&source->view);
    core_tensor_unref(source->tensor);
    PyMem_Free(source->strides);
    PyMem_Free(source->packed);
    if (!source->managed)
        return;
    PyObject *type, *value, *traceback; /* a foreign deleter may be Python */
    PyErr_Fetch(&type, &value, &traceback);
    source->release(source->managed);
    PyErr_Restore(type, value, traceback);
}

/* Tensors and buffers are in order; a capsule may carry anything. */
static int is_sane(const tcx_array_t *array) {
    int sane = array->ndim >= 0 && array->ndim <= TCX_NDIM_MAX && (array->shape || !array->ndim);
    for (int32_t i = 0; sane && i < array->ndim; i++)
        sane = array->shape[i] >= 0;
    return sane;
}

static PyObject *describe(struct core_state *state, const tcx_array_t *array) {
    if (!is_sane(array))
        return core_raise_exchange(state, "the DLPack capsule has no valid shape");
    if (!tcx_dtype_is_known(array->dtype))
        return core_raise_exchange(state, "elements of DLPack dtype (%d, %d, %d) cannot be shared",
                                   array->dtype.code, array->dtype.bits, array->dtype.lanes);
    PyObject *shape = shape_to_python(array->ndim, array->shape, 1);
    PyObject *device = shape ? device_to_python(array->device) : NULL;
    if (!device) {
        Py_XDECREF(shape);
        return NULL;
    }
    return Py_BuildValue("(NsNNn)", shape, format_of(array->dtype), device,
                         PyLong_FromVoidPtr(array->data), (Py_ssize_t)array_nbytes(array));
}

PyObject *source_describe(PyObject *module, PyObject *object) {
    struct core_state *state = PyModule_GetState(module);
    struct source source;
    if (source_open(state, object, &source) < 0)
        return NULL;
    PyObject *description = describe(state, &source.array);
    source_close(&source);
    return description;
}
