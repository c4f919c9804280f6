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
}
