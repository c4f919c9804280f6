#include "device.h"

#include "error.h"

static int is_cpu(tcx_device_t device) {
    return device.type == 0 || device.type == TCX_CPU;
}

int tcx_synchronize(tcx_device_t device, intptr_t stream) {
    (void)stream;
    return is_cpu(device) ? STATUS_OK : error_plain(STATUS_DEVICE);
}

int tcx_device_push(tcx_device_t device) {
    return is_cpu(device) ? STATUS_OK : error_plain(STATUS_DEVICE);
}

void tcx_device_pop(tcx_device_t device) {
    (void)device;
}

int tcx_devices(tcx_client_t *client, tcx_device_fn fn, void *context) {
    (void)client;
    (void)fn;
    (void)context;
    return error_plain(STATUS_DEVICE);
}
