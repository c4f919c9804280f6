/* ticket.c - references on their way to another process: made here, redeemed there */
#include "core.h"

PyObject *ticket_make(CORE_METHOD_ARGUMENTS) {
    struct core_state *state = core_state(type);
    tcx_tensor_t *tensor = NULL;
    tcx_bundle_t *bundle = NULL;
    char ticket[TCX_TICKET_MAX];
    size_t nbytes;
    if (!core_args(1, nargs, kwnames))
        return NULL;
    if (PyObject_TypeCheck(args[0], state->tensor_type))
        tensor = tensor_get(args[0]);
    else if (PyObject_TypeCheck(args[0], state->bundle_type))
        bundle = bundle_get(args[0]);
    else
        PyErr_SetString(PyExc_TypeError, "expected a Tensor or a Bundle");
    tcx_client_t *client = tensor || bundle ? client_usable(self) : NULL;
    if (!client)
        return NULL;
    int status;
    tcx_tensor_ref(tensor); /* while the daemon is asked: another thread may close the handle */
    tcx_bundle_ref(bundle);
    CORE_BEGIN_ASKING
    status = tensor ? tcx_tensor_ticket(client, tensor, ticket, &nbytes)
                    : tcx_bundle_ticket(client, bundle, ticket, &nbytes);
    CORE_END_ASKING
    PyObject *result =
        status ? core_raise(state, status) : PyBytes_FromStringAndSize(ticket, (Py_ssize_t)nbytes);
    core_tensor_unref(tensor);
    core_bundle_unref(bundle);
    return result;
}

PyObject *ticket_redeem(CORE_METHOD_ARGUMENTS) {
    struct core_state *state = core_state(type);
    tcx_client_t *client = client_usable(self);
    char *ticket;
    Py_ssize_t nbytes;
    if (!client || !core_args(1, nargs, kwnames) ||
        PyBytes_AsStringAndSize(args[0], &ticket, &nbytes) < 0)
        return NULL;
    tcx_tensor_t *tensor = NULL;
    tcx_bundle_t *bundle = NULL;
    int status;
    CORE_BEGIN_ASKING
    status = tcx_redeem(client, ticket, (size_t)nbytes, &tensor, &bundle);
    CORE_END_ASKING
    if (status)
        return core_raise(state, status);
    return tensor ? tensor_wrap(state, self, tensor) : bundle_wrap(state, self, bundle);
}
