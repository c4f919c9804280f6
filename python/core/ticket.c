/* ticket.c - references on their way to another process: made here, redeemed there */
#include "core.h"

/* Bytes that carry `tensor`, or `bundle` where that is NULL; borrowed, held while the daemon is
 * asked: another thread may close the handle. */
static PyObject *ticket_for(struct core_state *state, PyObject *client_object, tcx_tensor_t *tensor,
                            tcx_bundle_t *bundle) {
    tcx_client_t *client = client_usable(client_object);
    if (!client)
        return NULL;
    char ticket[TCX_TICKET_MAX];
    size_t nbytes;
    int status;
    tcx_tensor_ref(tensor);
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

PyObject *ticket_for_tensor(CORE_METHOD_ARGUMENTS) {
    (void)args;
    tcx_tensor_t *tensor = tensor_get(self);
    if (!tensor || !core_args(0, nargs, kwnames))
        return NULL;
    return ticket_for(core_state(type), ((struct tensor_object *)self)->client, tensor, NULL);
}

PyObject *ticket_for_bundle(CORE_METHOD_ARGUMENTS) {
    (void)args;
    tcx_bundle_t *bundle = bundle_get(self);
    if (!bundle || !core_args(0, nargs, kwnames))
        return NULL;
    return ticket_for(core_state(type), ((struct bundle_object *)self)->client, NULL, bundle);
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
