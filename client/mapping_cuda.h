/*
 * mapping_cuda.h - memory of a CUDA device, mapped into this process and out of it
 *
 * Two kinds, as the daemon has it: a descriptor (vmm), which keeps the memory as long as it is
 * mapped, whatever becomes of the daemon; or a handle of cuIpcGetMemHandle() (ipc), whose memory is
 * the daemon's to free when everybody has closed it.
 */
#pragma once

#include "mapping.h"

/* Maps it, all of it or nothing. STATUS_DEVICE, STATUS_OUT_OF_MEMORY. */
int mapping_cuda_map(const struct device_memory *memory, char **ret_address);

/* 0: the driver does not let it go. */
int mapping_cuda_unmap(const struct mapping *mapping);
