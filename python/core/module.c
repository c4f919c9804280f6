/* module.c - tensorcx._core: makes the types, keeps what they share */
#include "core.h"

#include <stddef.h>

struct core_state *core_state(PyTypeObject *type) {
    return PyType_GetModuleState(type);
}

/* register(tensor: type, bundle: type, errors: tuple, formats: dict, format_of, shape_of,
 * message_of): from here on tensors and bundles can be made. */
static PyObject *core_register(PyObject *module, PyObject *args) {
    struct core_state *state = PyModule_GetState(module);
    PyObject *new[7];
    if (!PyArg_ParseTuple(args, "OOO!O!OOO:register", &new[0], &new[1], &PyTuple_Type, &new[2],
                          &PyDict_Type, &new[3], &new[4], &new[5], &new[6]))
        return NULL;
    int tensor_fits = PyObject_IsSubclass(new[0], (PyObject *)state->tensor_type);
    int bundle_fits = PyObject_IsSubclass(new[1], (PyObject *)state->bundle_type);
    if (tensor_fits < 0 || bundle_fits < 0)
        return NULL;
    if (!tensor_fits || !bundle_fits || PyTuple_Size(new[2]) != TCX_DEVICE + 1) {
        PyErr_SetString(PyExc_TypeError, "register(): not what belongs to this module");
        return NULL;
    }
    PyObject **places[] = {&state->tensor_class, &state->bundle_class, &state->errors,
                           &state->formats,      &state->format_of,    &state->shape_of,
                           &state->message_of};
    for (int i = 0; i < 7; i++) {
        PyObject *old = *places[i];
        *places[i] = Py_NewRef(new[i]);
        Py_XDECREF(old);
    }
    Py_RETURN_NONE;
}

static PyObject *core_version(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyUnicode_FromString(tcx_version());
}

/* `base` may be NULL. */
static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject *base,
                    PyTypeObject **ret_type) {
    *ret_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, (PyObject *)base);
    return *ret_type ? PyModule_AddType(module, *ret_type) : -1;
}

static int core_exec(PyObject *module) {
    struct core_state *state = PyModule_GetState(module);
    if (add_type(module, &client_spec, NULL, &state->client_type) < 0 ||
        add_type(module, &tensor_spec, NULL, &state->tensor_type) < 0 ||
        add_type(module, &bundle_spec, NULL, &state->bundle_type) < 0 ||
        add_type(module, &channel_spec, NULL, &state->channel_type) < 0 ||
        add_type(module, &sender_spec, state->channel_type, &state->sender_type) < 0 ||
        add_type(module, &receiver_spec, state->channel_type, &state->receiver_type) < 0)
        return -1;

    static const struct {
        const char *name;
        long value;
    } constants[] = {
        {"PUT_READONLY", TCX_PUT_READONLY},   {"PUT_EPHEMERAL", TCX_PUT_EPHEMERAL},
        {"PUT_EXCLUSIVE", TCX_PUT_EXCLUSIVE}, {"PUT_COPY", TCX_PUT_COPY},
        {"PUT_NO_COPY", TCX_PUT_NO_COPY},     {"COPY_IF_NEEDED", TCX_COPY_IF_NEEDED},
        {"COPY_NEVER", TCX_COPY_NEVER},       {"COPY_ALWAYS", TCX_COPY_ALWAYS},
        {"CHANNEL_TOPIC", TCX_CHANNEL_TOPIC}, {"CHANNEL_DROP_OLDEST", TCX_CHANNEL_DROP_OLDEST},
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
            return -1;
    return 0;
}

static int core_traverse(PyObject *module, visitproc visit, void *arg) {
    struct core_state *state = PyModule_GetState(module);
    Py_VISIT(state->client_type);
    Py_VISIT(state->tensor_type);
    Py_VISIT(state->bundle_type);
    Py_VISIT(state->channel_type);
    Py_VISIT(state->sender_type);
    Py_VISIT(state->receiver_type);
    Py_VISIT(state->tensor_class);
    Py_VISIT(state->bundle_class);
    Py_VISIT(state->errors);
    Py_VISIT(state->formats);
    Py_VISIT(state->format_of);
    Py_VISIT(state->shape_of);
    Py_VISIT(state->message_of);
    return 0;
}

static int core_clear(PyObject *module) {
    struct core_state *state = PyModule_GetState(module);
    Py_CLEAR(state->client_type);
    Py_CLEAR(state->tensor_type);
    Py_CLEAR(state->bundle_type);
    Py_CLEAR(state->channel_type);
    Py_CLEAR(state->sender_type);
    Py_CLEAR(state->receiver_type);
    Py_CLEAR(state->tensor_class);
    Py_CLEAR(state->bundle_class);
    Py_CLEAR(state->errors);
    Py_CLEAR(state->formats);
    Py_CLEAR(state->format_of);
    Py_CLEAR(state->shape_of);
    Py_CLEAR(state->message_of);
    return 0;
}

static void core_free(void *module) {
    core_clear(module);
}

/* Before the interpreter ends: deleters of Python objects need it. */
static PyObject *core_devices_end(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    tcx_devices_end();
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"register", core_register, METH_VARARGS, NULL},
    {"version", core_version, METH_NOARGS, "Version of the library."},
    {"describe", source_describe, METH_O, NULL},
    {"on_device", device_call, METH_VARARGS, NULL},
    {"devices_end", core_devices_end, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, core_exec},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,  .m_name = "tensorcx._core", .m_size = sizeof(struct core_state),
    .m_methods = functions, .m_slots = slots,           .m_traverse = core_traverse,
    .m_clear = core_clear,  .m_free = core_free,
};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void) {
    return PyModuleDef_Init(&definition);
}
