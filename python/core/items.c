/* items.c - a list of paths and elements as the library wants a bundle */
#include "core.h"

void items_close(struct items *items) {
    for (size_t i = 0; i < items->count; i++) {
        if (items->items[i].array)
            source_close(&items->sources[i]);
        PyMem_Free((void *)items->items[i].path);
    }
    PyMem_Free(items->items);
    PyMem_Free(items->sources);
}

/* A tuple of str; the keys are borrowed from it. NULL and an exception. */
static const char **path_of(PyObject *tuple, size_t *ret_depth) {
    Py_ssize_t depth = PyTuple_Size(tuple);
    if (depth < 0)
        return NULL;
    const char **path = PyMem_Calloc((size_t)depth + 1, sizeof *path);
    if (!path) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < depth; i++) {
        path[i] = text_from_python(PyTuple_GetItem(tuple, i));
        if (!path[i]) {
            PyMem_Free(path);
            return NULL;
        }
    }
    *ret_depth = (size_t)depth;
    return path;
}

/* One (path, source or None) of the list. 0 or -1. */
static int items_add(struct core_state *state, PyObject *pair, intptr_t stream,
                     struct items *items) {
    PyObject *path = PyTuple_GetItem(pair, 0), *object = PyTuple_GetItem(pair, 1);
    if (!path || !object)
        return -1;
    tcx_item_t *item = &items->items[items->count];
    struct source *source = &items->sources[items->count];
    item->path = path_of(path, &item->depth);
    if (!item->path)
        return -1;
    if (object != Py_None) {
        if (source_open(state, object, source) < 0) {
            PyMem_Free((void *)item->path);
            return -1;
        }
        source->array.stream = stream;
        item->array = &source->array;
    }
    items->count++;
    return 0;
}

int items_open(struct core_state *state, PyObject *list, intptr_t stream, struct items *ret_items) {
    Py_ssize_t count = PyList_Size(list);
    if (count < 0)
        return -1;
    struct items items = {
        .items = PyMem_Calloc((size_t)count + 1, sizeof *items.items),
        .sources = PyMem_Calloc((size_t)count + 1, sizeof *items.sources),
    };
    if (!items.items || !items.sources) {
        PyErr_NoMemory();
        items_close(&items);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (items_add(state, PyList_GetItem(list, i), stream, &items) < 0) {
            items_close(&items);
            return -1;
        }
    *ret_items = items;
    return 0;
}
