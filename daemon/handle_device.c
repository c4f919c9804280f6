#include "handle.h"

int handle_devices(struct call *call, const struct wire_devices *request,
                   struct wire_devices_reply *reply) {
    (void)request;
    (void)reply;
    return call_fail(call, STATUS_DEVICE, "this daemon has memory of the CPU only");
}

int handle_unmap(struct call *call, const struct wire_unmap *request) {
    (void)request;
    return call_broken(call, "UNMAP: a segment that is not mapped");
}
