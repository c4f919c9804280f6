/*
 * device_list.h - the CUDA devices of a daemon: its numbers of them, which are those on the wire
 */
#pragma once

#include <stdint.h>

#include "device.h"

struct session;
struct device_list; /* owned by the session; made by the first question, constant from then on */

/* The device with the daemon's number; NULL for 0, the CPU. Asks the daemon once. As
 * device_find_uuid(), call_run(); STATUS_INTERNAL: the daemon has none of that number. */
int device_of_index(struct session *session, unsigned index, struct device **ret_device);

/* The daemon's number of the device; 0 for NULL. Asks the daemon once. As call_run();
 * STATUS_DEVICE: it owns no memory there. */
int device_index(struct session *session, const struct device *device, uint16_t *ret_index);

/* What users call it; id -1: this process does not see it. Asks the daemon once. */
tcx_device_t device_name_of_index(struct session *session, unsigned index);
