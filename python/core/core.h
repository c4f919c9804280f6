/*
 * core.h - tensorcx._core: the C half of the Python package, over libtensorcx
 *
 * A type has a C file: Client, Tensor, Bundle, Channel with Sender and Receiver. An object holds
 * one reference on an object of the library and adds what needs C: the buffer protocol, DLPack
 * capsules, waiting without the GIL, and whatever is done for every message. What users see are
 * subclasses written in Python; register() tells us which, so that whatever makes a tensor here
 * makes one of theirs. Knows the public header and the limited API of Python 3.11 only.
 *
 * Methods that begin with "_" are for the Python half, which has checked types and number of their
 * arguments; values are checked here or by the library.
 */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>
#include <tensorcx.h>

_Static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "shapes are handed over as they are");

/* ------------------------------------------------------------------------------------ module */

struct core_state {
    PyTypeObject *client_type; /* owned, like all that follow */
    PyTypeObject *tensor_type;
    PyTypeObject *bundle_type;
    PyTypeObject *channel_type;
    PyTypeObject *sender_type; /* these two are subclasses of channel_type */
    PyTypeObject *receiver_type;
    /* of the Python half; NULL before register() */
    PyObject *tensor_class; /* the subclass of tensor_type */
    PyObject *bundle_class; /* the subclass of bundle_type */
    PyObject *errors;       /* tuple of exception classes, index is a tcx_status */
    PyObject *formats;      /* dict: formats of dtypes as they are mostly said */
    PyObject *format_of;    /* of any other dtype */
    PyObject *shape_of;     /* a tuple, of a shape that is none */
    PyObject *message_of;   /* a source, or a list of items, of what is no tensor */
};

/* The state of the module that made `type`, which must be one of its types. */
struct core_state *core_state(PyTypeObject *type);

/* A method that is told the type it was found in, and so finds the module's state. */
#define CORE_METHOD(name, function, doc)                     \
    {                                                        \
        name, (PyCFunction)(void (*)(void))(function),       \
            METH_METHOD | METH_FASTCALL | METH_KEYWORDS, doc \
    }
#define CORE_METHOD_ARGUMENTS \
    PyObject *self, PyTypeObject *type, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames

/* ------------------------------------------------------------------------------- arguments.c */

/* True if there are exactly `wanted` positional arguments; else false and TypeError. */
int core_args(Py_ssize_t wanted, Py_ssize_t nargs, PyObject *kwnames);

enum { ARGUMENTS_MAX = 4 };

struct arguments {
    const char *function;
    const char *names[ARGUMENTS_MAX]; /* as they may be said by keyword */
    Py_ssize_t positional;            /* the first ones may be said by position */
    Py_ssize_t required;              /* and of those the first ones must be said */
};

/* Values in the order of names, borrowed; NULL: not said. Keywords need not be interned. True, or
 * false and TypeError. */
int core_arguments(const struct arguments *what, PyObject *const *args, Py_ssize_t nargs,
                   PyObject *kwnames, PyObject *ret_values[ARGUMENTS_MAX]);

/* Seconds as the library takes them; NULL and None: for ever. True, or false and ValueError. */
int timeout_from_python(PyObject *value, double *ret_timeout);

/* --------------------------------------------------------------------------- without the GIL
 *
 *     CORE_BEGIN_ASKING
 *     status = tcx_...();        asks the daemon, maps, copies, or calls a foreign deleter
 *     CORE_END_ASKING
 *
 * What mostly has nothing to wait for is first tried with the GIL, and TCX_AT_ONCE: to hand it over
 * costs more than a message does, and milliseconds where other threads run.
 */

/* This thread's Python state while it is inside the library without the GIL, else NULL. */
extern _Thread_local PyThreadState *core_thread;

#define CORE_BEGIN_ASKING                                                                    \
    {                                                                                        \
        PyThreadState *outer_ = core_thread; /* not NULL: a foreign deleter called Python */ \
        core_thread = PyEval_SaveThread();
#define CORE_END_ASKING                \
    PyEval_RestoreThread(core_thread); \
    core_thread = outer_;              \
    }

/* For callbacks of the library on the asking thread: takes the GIL back, gives it up again. */
void core_enter_python(void);
void core_leave_python(void);

/* tcx_client_options_t::interrupt: non-zero when a Python signal handler raised. */
int core_interrupt(void *context);

/* ---------------------------------------------------------------------------------- errors.c */

/* Raises what belongs to `status` with the text of tcx_error(), or leaves the exception that is set
 * already (a signal handler's). Returns NULL. */
PyObject *core_raise(struct core_state *state, int status);

/* The end of a callback that began with core_enter_python(): adds `item`, which is taken, to the
 * list and gives the GIL up. Non-zero stops the listing: an exception is set. */
int core_list_add(PyObject *list, PyObject *item);

/* The list that callbacks filled, or NULL and the exception. Takes `list`. */
PyObject *core_list_or_raise(struct core_state *state, int status, PyObject *list);

/* Raises tensorcx.ExchangeError. Returns NULL. */
PyObject *core_raise_exchange(struct core_state *state, const char *format, ...);

/* Py_DECREF() of what may hold capsules: whatever their destructors do, the exception that is on
 * its way stays. */
void core_drop(PyObject *object);

/* As the tcx_ functions, for destructors: whatever a foreign deleter does, the exception that is on
 * its way stays. */
void core_tensor_unref(tcx_tensor_t *tensor);
void core_bundle_unref(tcx_bundle_t *bundle);

/* ----------------------------------------------------------------------------------- array.c */

/* The struct-module format of a dtype: "f" for float32. */
const char *format_of(tcx_dtype_t dtype);

/* The dtype of elements of `itemsize` bytes with this format; NULL means "B". 0, or -1 and
 * ExchangeError. */
int format_parse(struct core_state *state, const char *format, Py_ssize_t itemsize,
                 tcx_dtype_t *ret_dtype);

/* A dtype from its format as Python text, of native size. 0, or -1 and an exception. */
int dtype_from_python(struct core_state *state, PyObject *format, tcx_dtype_t *ret_dtype);

/* Text without a 0 byte, borrowed; NULL and an exception. */
const char *text_from_python(PyObject *text);

/* What another process said about itself: whatever it is, it becomes a str. */
PyObject *text_to_python(const char *text);

/* A tuple of ints; `ret_shape` has room for TCX_NDIM_MAX. 0, or -1 and ValueError or TypeError. */
int shape_from_python(PyObject *tuple, int64_t *ret_shape, int32_t *ret_ndim);
PyObject *shape_to_python(int32_t ndim, const int64_t *shape, int64_t unit);

size_t array_nbytes(const tcx_array_t *array);

/* ---------------------------------------------------------------------------------- device.c */

int device_is_cuda(tcx_device_t device);

/* "cpu", "cuda" or "cuda:1"; None is {0, 0}. 0, or -1 and an exception. */
int device_from_python(struct core_state *state, PyObject *object, tcx_device_t *ret_device);
PyObject *device_to_python(tcx_device_t device);

/* A stream as DLPack numbers them; NULL and None are 0, all of them. -1, none, only where
 * `may_skip`. 0, or -1 and an exception. */
int stream_from_python(struct core_state *state, PyObject *object, int may_skip,
                       intptr_t *ret_stream);

/* on_device(ordinal: int, function, *args): what function(*args) returns, called while that CUDA
 * device, if there is one, is this thread's current one. */
PyObject *device_call(PyObject *module, PyObject *args);

/* Client.devices(): the CUDA devices of the daemon. */
PyObject *device_list(CORE_METHOD_ARGUMENTS);

/* ---------------------------------------------------------------------------------- source.c */

/* The elements of a Python object, borrowed from it until source_close(). */
struct source {
    tcx_array_t array;
    tcx_tensor_t *tensor; /* owned; NULL: the object is no Tensor */
    Py_buffer view;       /* owned; view.obj NULL: the object has no buffer */
    int64_t *strides;     /* owned; NULL: C order. What array.strides points to */
    void *packed;         /* owned; NULL: not needed. What array.data points to */
    void *managed;        /* owned; NULL: the object is no capsule */
    void (*release)(void *managed);
};

/* `object` is a Tensor, has the buffer protocol, or is a DLPack capsule, which is consumed. 0, or
 * -1 and an exception. */
int source_open(struct core_state *state, PyObject *object, struct source *ret_source);
void source_close(struct source *source);

/* describe(source): (shape, format, device, address, nbytes). */
PyObject *source_describe(PyObject *module, PyObject *object);

/* ----------------------------------------------------------------------------------- items.c */

/* What a bundle is made of, borrowed from Python objects until items_close(). */
struct items {
    size_t count;           /* of those that are filled in */
    tcx_item_t *items;      /* owned */
    struct source *sources; /* owned; array NULL: an empty mapping, nothing to close */
};

/* From list[tuple[path, source | None]], all written on `stream`. 0, or -1 and an exception. */
int items_open(struct core_state *state, PyObject *list, intptr_t stream, struct items *ret_items);
void items_close(struct items *items);

/* ---------------------------------------------------------------------------------- client.c */

struct client_object {
    PyObject_HEAD
    tcx_client_t *client; /* owned */
    int is_closed;
};

extern PyType_Spec client_spec;

/* The library's client, borrowed; NULL and ValueError when the Client is closed. */
tcx_client_t *client_usable(PyObject *self);

/* Of methods without arguments: None, when the daemon was asked; or the list that `ask` has the
 * library's callbacks fill. */
PyObject *client_do(CORE_METHOD_ARGUMENTS, int (*ask)(tcx_client_t *client));
PyObject *client_collect(CORE_METHOD_ARGUMENTS, int (*ask)(tcx_client_t *client, void *list));

/* Client.socket: the path, a str. */
PyObject *client_socket(PyObject *self, void *closure);

/* ---------------------------------------------------------------------------------- daemon.c */

/* Client.stop(), Client.stats(), Client.clients() */
PyObject *daemon_stop(CORE_METHOD_ARGUMENTS);
PyObject *daemon_stats(CORE_METHOD_ARGUMENTS);
PyObject *daemon_clients(CORE_METHOD_ARGUMENTS);

/* ---------------------------------------------------------------------------------- tensor.c */

struct tensor_object {
    PyObject_HEAD
    PyObject *client;     /* owned: struct client_object, used to copy */
    tcx_tensor_t *tensor; /* owned; NULL: closed */
    PyObject *channel;    /* owned: struct channel_object that it is a loan of; NULL: no loan */
};

extern PyType_Spec tensor_spec;

/* The Tensor that owns `tensor`, also on failure. */
PyObject *tensor_wrap(struct core_state *state, PyObject *client, tcx_tensor_t *tensor);

/* The library's tensor, borrowed; NULL and ValueError when the Tensor is closed. */
tcx_tensor_t *tensor_get(PyObject *self);

/* What Tensor.close() does. */
void tensor_end(PyObject *self);

/* ---------------------------------------------------------------------------------- bundle.c */

struct bundle_object {
    PyObject_HEAD
    PyObject *client;     /* owned: struct client_object, passed on to tensors */
    tcx_bundle_t *bundle; /* owned; NULL: closed */
};

extern PyType_Spec bundle_spec;

/* The library's bundle, borrowed; NULL and ValueError when the Bundle is closed. */
tcx_bundle_t *bundle_get(PyObject *self);

/* The Bundle that owns `bundle`, also on failure. */
PyObject *bundle_wrap(struct core_state *state, PyObject *client, tcx_bundle_t *bundle);

/* --------------------------------------------------------- channel.c, sender.c, receiver.c */

struct channel_object {
    PyObject_HEAD
    PyObject *client;       /* owned: struct client_object, passed on to tensors */
    PyObject *name;         /* owned: str */
    tcx_channel_t *channel; /* owned */
    int is_closed;
};

extern PyType_Spec channel_spec, sender_spec, receiver_spec;

tcx_channel_t *channel_of(PyObject *self);

/* Client._channel(class: type, name: str, flags: int, capacity: int, buffers: int,
 * participants: int, nbytes: int, device: str | None): a handle; `class` is a subclass of
 * _core.Channel. */
PyObject *channel_open(CORE_METHOD_ARGUMENTS);

/* Client._channels(): every channel of the daemon. */
PyObject *channel_list(CORE_METHOD_ARGUMENTS);

/* ---------------------------------------------------------------------------------- ticket.c */

/* Client._ticket(x: Tensor | Bundle): bytes that carry the reference to another process; `x` may be
 * from another client. */
PyObject *ticket_make(CORE_METHOD_ARGUMENTS);

/* Client._redeem(ticket: bytes): the Tensor or Bundle that it carries. */
PyObject *ticket_redeem(CORE_METHOD_ARGUMENTS);

/* ---------------------------------------------------------------------------------- dlpack.c */

/* Tensor.__dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None) */
PyObject *dlpack_export(CORE_METHOD_ARGUMENTS);

/* What a capsule carries: for source_open(). The managed tensor is the source's then. 0, or -1 and
 * an exception. */
int dlpack_open(struct core_state *state, PyObject *capsule, struct source *ret_source);

/* Client._from_capsule(capsule, copy_mode, stream): the Tensor of what a capsule carries, which is
 * consumed; on a CUDA device, when the stream's work is done. */
PyObject *dlpack_import(CORE_METHOD_ARGUMENTS);
