/*
 * dlpack.c - DLPack capsules, out and in
 *
 * A capsule belongs to whoever holds it until a consumer renames it; from then on the consumer owns
 * the managed tensor. Our managed tensors have no Python in them, so their deleters may run
 * anywhere. What a tensor must look like to be taken is the library's business.
 */
#include "core.h"

#include <dlpack/dlpack.h>

#define VERSIONED "dltensor_versioned"
#define LEGACY    "dltensor"

/* ----------------------------------------------------------------------------------- export */

/* Nobody consumed the capsule. PyCapsule_IsValid() alone neither sets nor clears an exception, and
 * one may be on its way here; the deleter of what we imported may be foreign code. */
static void destroy_versioned(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, VERSIONED))
        return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    struct DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, VERSIONED);
    managed->deleter(managed);
    PyErr_Restore(type, value, traceback);
}

static void destroy_legacy(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, LEGACY))
        return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    struct DLManagedTensor *managed = PyCapsule_GetPointer(capsule, LEGACY);
    managed->deleter(managed);
    PyErr_Restore(type, value, traceback);
}

static PyObject *capsule_versioned(struct core_state *state, tcx_tensor_t *tensor, int copied) {
    struct DLManagedTensorVersioned *managed;
    int status = tcx_to_dlpack(tensor, copied, &managed);
    if (status)
        return core_raise(state, status);
    PyObject *capsule = PyCapsule_New(managed, VERSIONED, destroy_versioned);
    if (!capsule)
        managed->deleter(managed);
    return capsule;
}

static PyObject *capsule_legacy(struct core_state *state, tcx_tensor_t *tensor) {
    struct DLManagedTensor *managed;
    int status = tcx_to_dlpack_legacy(tensor, &managed);
    if (status)
        return core_raise(state, status);
    PyObject *capsule = PyCapsule_New(managed, LEGACY, destroy_legacy);
    if (!capsule)
        managed->deleter(managed);
    return capsule;
}

/* What a consumer asked for. */
struct request {
    PyObject *stream, *max_version, *dl_device, *copy; /* borrowed; None: not given */
};

/* 0, or -1 and TypeError. */
static int request_read(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                        struct request *ret_request) {
    static const struct arguments what = {
        "__dlpack__", {"stream", "max_version", "dl_device", "copy"}, 0, 0};
    PyObject *said[ARGUMENTS_MAX];
    if (!core_arguments(&what, args, nargs, kwnames, said))
        return -1;
    for (int i = 0; i < ARGUMENTS_MAX; i++)
        said[i] = said[i] ? said[i] : Py_None;
    *ret_request = (struct request){said[0], said[1], said[2], said[3]};
    return 0;
}

/* A tuple of two ints. 0, or -1 and TypeError. */
static int pair_of(PyObject *value, const char *name, long *ret_first, long *ret_second) {
    if (!PyTuple_Check(value) || PyTuple_Size(value) != 2) {
        PyErr_Format(PyExc_TypeError, "%s must be None or a tuple of two ints, not %R", name,
                     value);
        return -1;
    }
    *ret_first = PyLong_AsLong(PyTuple_GetItem(value, 0));
    if (*ret_first == -1 && PyErr_Occurred())
        return -1;
    *ret_second = PyLong_AsLong(PyTuple_GetItem(value, 1));
    return *ret_second == -1 && PyErr_Occurred() ? -1 : 0;
}

/* What is exported. */
struct answer {
    tcx_device_t device;
    int versioned;
    int copy;
};

/* Where the consumer wants it: here, or a copy on the CPU. 0, or -1 and TypeError or ExchangeError.
 */
static int answer_device(struct core_state *state, const struct request *request,
                         struct answer *answer) {
    long type, id;
    if (request->dl_device == Py_None)
        return 0;
    if (pair_of(request->dl_device, "dl_device", &type, &id) < 0)
        return -1;
    if (type == answer->device.type && id == answer->device.id)
        return 0;
    if (type == kDLCPU && id == 0 && (answer->copy || request->copy == Py_None)) {
        answer->device = (tcx_device_t){TCX_CPU, 0};
        answer->copy = 1;
        return 0;
    }
    core_raise_exchange(state, "dl_device %R: a tensor on (%d, %d) stays there%s",
                        request->dl_device, (int)answer->device.type, (int)answer->device.id,
                        device_is_cuda(answer->device) ? ", or is copied to the CPU, (1, 0)" : "");
    return -1;
}

/* Nothing that the library does is under way after its call, so no stream has to wait for anything.
 * 0, or -1 and TypeError or ExchangeError. */
static int check_stream(struct core_state *state, PyObject *stream, tcx_device_t device) {
    intptr_t number;
    if (device_is_cuda(device))
        return stream_from_python(state, stream, 1, &number);
    if (stream == Py_None)
        return 0;
    if (PyLong_Check(stream))
        core_raise_exchange(state, "stream must be None for a tensor on the CPU, not %R", stream);
    else
        PyErr_Format(PyExc_TypeError, "stream must be None or an int, not %R", stream);
    return -1;
}

/* `here`: where the tensor is. 0, or -1 and TypeError or ExchangeError. */
static int answer_to(struct core_state *state, const struct request *request, tcx_device_t here,
                     struct answer *ret_answer) {
    struct answer answer = {.device = here};
    long major = 0, minor;
    if (request->copy != Py_None && (answer.copy = PyObject_IsTrue(request->copy)) < 0)
        return -1;
    if (answer_device(state, request, &answer) < 0 ||
        check_stream(state, request->stream, answer.device) < 0)
        return -1;
    if (request->max_version != Py_None &&
        pair_of(request->max_version, "max_version", &major, &minor) < 0)
        return -1;
    answer.versioned = major >= 1;
    *ret_answer = answer;
    return 0;
}

PyObject *dlpack_export(CORE_METHOD_ARGUMENTS) {
    struct core_state *state = core_state(type);
    tcx_tensor_t *tensor = tensor_get(self);
    struct request request;
    struct answer answer;
    if (!tensor || request_read(args, nargs, kwnames, &request) < 0 ||
        answer_to(state, &request, tcx_tensor_array(tensor)->device, &answer) < 0)
        return NULL;

    tcx_client_t *client =
        answer.copy ? client_usable(((struct tensor_object *)self)->client) : NULL;
    if (answer.copy && !client)
        return NULL;
    tensor = tcx_tensor_ref(tensor); /* close() may come while the GIL is away */
    if (answer.copy) {
        tcx_tensor_t *source = tensor;
        int status;
        CORE_BEGIN_ASKING
        status = tcx_copy(client, tcx_tensor_array(source), answer.device, &tensor);
        CORE_END_ASKING
        if (status)
            core_raise(state, status);
        core_tensor_unref(source);
        if (status)
            return NULL;
    }
    PyObject *capsule = answer.versioned ? capsule_versioned(state, tensor, answer.copy)
                                         : capsule_legacy(state, tensor);
    core_tensor_unref(tensor);
    return capsule;
}

/* ----------------------------------------------------------------------------------- import */

/* Makes the capsule's content ours, before anything is done with it. NULL: it has another name. */
static void *capsule_take(PyObject *capsule, const char *name, const char *used_name) {
    if (!PyCapsule_IsValid(capsule, name))
        return NULL;
    void *managed = PyCapsule_GetPointer(capsule, name);
    PyCapsule_SetName(capsule, used_name);
    PyCapsule_SetDestructor(capsule, NULL); /* for producers that do not look at the name */
    return managed;
}

static PyObject *refuse(struct core_state *state, PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, "used_" VERSIONED) || PyCapsule_IsValid(capsule, "used_" LEGACY))
        return core_raise_exchange(
            state, "the DLPack capsule has been consumed already; ask its producer for a new one");
    PyErr_Format(PyExc_TypeError, "__dlpack__() must return a DLPack capsule, not %R", capsule);
    return NULL;
}

static void release_versioned(void *managed) {
    struct DLManagedTensorVersioned *self = managed;
    if (self->deleter)
        self->deleter(self);
}

static void release_legacy(void *managed) {
    struct DLManagedTensor *self = managed;
    if (self->deleter)
        self->deleter(self);
}

static void array_of(const DLTensor *tensor, tcx_array_t *ret_array) {
    *ret_array = (tcx_array_t){
        .data = (void *)((uintptr_t)tensor->data + tensor->byte_offset),
        .dtype = {tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes},
        .ndim = tensor->ndim,
        .shape = tensor->shape,
        .strides = tensor->strides,
        .device = {(int32_t)tensor->device.device_type, tensor->device.device_id},
    };
}

/* 0, or -1 and an exception; what the capsule carries is the source's in either case. */
static int take_source(struct core_state *state, PyObject *capsule, struct source *source) {
    struct DLManagedTensorVersioned *versioned =
        capsule_take(capsule, VERSIONED, "used_" VERSIONED);
    struct DLManagedTensor *legacy =
        versioned ? NULL : capsule_take(capsule, LEGACY, "used_" LEGACY);
    if (legacy) {
        *source = (struct source){.release = release_legacy, .managed = legacy};
        array_of(&legacy->dl_tensor, &source->array);
    } else if (versioned) {
        *source = (struct source){.release = release_versioned, .managed = versioned};
        if (versioned->version.major != DLPACK_MAJOR_VERSION) {
            core_raise_exchange(state, "the producer speaks DLPack %u.%u, we %d.x",
                                (unsigned)versioned->version.major,
                                (unsigned)versioned->version.minor, DLPACK_MAJOR_VERSION);
            return -1;
        }
        array_of(&versioned->dl_tensor, &source->array);
        source->array.readonly = (versioned->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
    } else {
        refuse(state, capsule);
        return -1;
    }
    if (source->array.device.type == 0) { /* to the library that is the CPU */
        core_raise_exchange(state, "the DLPack capsule names no device: its type is 0");
        return -1;
    }
    return 0;
}

int dlpack_open(struct core_state *state, PyObject *capsule, struct source *ret_source) {
    struct source source = {0};
    if (take_source(state, capsule, &source) < 0) {
        source_close(&source);
        return -1;
    }
    *ret_source = source;
    return 0;
}

/* _from_capsule(capsule, copy_mode: int, stream: int | None) */
PyObject *dlpack_import(CORE_METHOD_ARGUMENTS) {
    struct core_state *state = core_state(type);
    intptr_t stream;
    if (!core_args(3, nargs, kwnames))
        return NULL;
    tcx_copy_mode_t mode = (tcx_copy_mode_t)PyLong_AsLong(args[1]);
    if (PyErr_Occurred() || (mode == TCX_COPY_ALWAYS && !client_usable(self)) ||
        stream_from_python(state, args[2], 0, &stream) < 0)
        return NULL;
    struct DLManagedTensorVersioned *versioned =
        capsule_take(args[0], VERSIONED, "used_" VERSIONED);
    struct DLManagedTensor *legacy =
        versioned ? NULL : capsule_take(args[0], LEGACY, "used_" LEGACY);
    if (!versioned && !legacy)
        return refuse(state, args[0]);

    tcx_client_t *client = ((struct client_object *)self)->client; /* knows its memory, if closed */
    tcx_tensor_t *tensor;
    int status;
    CORE_BEGIN_ASKING
    status = versioned ? tcx_from_dlpack(client, versioned, mode, &tensor)
                       : tcx_from_dlpack_legacy(client, legacy, mode, &tensor);
    if (!status) {
        status = tcx_synchronize(tcx_tensor_array(tensor)->device, stream);
        if (status)
            tcx_tensor_unref(tensor);
    }
    CORE_END_ASKING
    return status ? core_raise(state, status) : tensor_wrap(state, self, tensor);
}
