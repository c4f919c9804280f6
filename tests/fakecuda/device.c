#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct device devices[DEVICES_MAX]; /* that this process sees */
static int count;

static int read_uuid(const char *text, CUuuid *ret_uuid) {
    for (int i = 0; i < 16; i++) {
        unsigned int byte;
        if (sscanf(text + 2 * i, "%2x", &byte) != 1) {
            return 0;
        }
        ret_uuid->bytes[i] = (unsigned char)byte;
    }
    return 1;
}

static struct device standard_device(int i) {
    struct device device = {.nbytes = (size_t)1 << 30, .uuid = {{0xfa, 0xce}}};

    device.has_vmm = device.has_descriptors = device.has_rdma = 1;
    device.uuid.bytes[15] = (unsigned char)i;
    return device;
}

static int read_device(const char *text, struct device *ret_device) {
    char uuid[33], flags[8];

    *ret_device = (struct device){0};
    if (sscanf(text, "%32[0-9a-f]:%zu:%7[vfr-]", uuid, &ret_device->nbytes, flags) != 3 ||
        strlen(uuid) != 32 || !read_uuid(uuid, &ret_device->uuid)) {
        return 0;
    }
    ret_device->has_vmm = strchr(flags, 'v') != NULL;
    ret_device->has_descriptors = strchr(flags, 'f') != NULL;
    ret_device->has_rdma = strchr(flags, 'r') != NULL;
    return 1;
}

/* All devices of the machine, by FAKECUDA_DEVICES. */
static int read_machine(struct device machine[DEVICES_MAX]) {
    const char *text = getenv("FAKECUDA_DEVICES");
    int found = 0;

    if (!text || !strchr(text, ':')) {
        int wanted = text ? atoi(text) : 1;
        for (; found < wanted && found < DEVICES_MAX; found++) {
            machine[found] = standard_device(found);
        }
        return found;
    }
    while (text && found < DEVICES_MAX) {
        if (!read_device(text, &machine[found++])) {
            fprintf(stderr, "fakecuda: cannot read FAKECUDA_DEVICES at \"%s\"\n", text);
            abort();
        }
        text = strchr(text, ',');
        text = text ? text + 1 : NULL;
    }
    return found;
}

/* "GPU-" and the beginning of a UUID, with its dashes. */
static int is_called(const struct device *device, const char *name) {
    char digits[33];
    int n = 0;

    for (int i = 0; i < 16; i++) {
        sprintf(digits + 2 * i, "%02x", device->uuid.bytes[i]);
    }
    for (const char *at = name + strlen("GPU-"); *at; at++) {
        if (*at != '-' && (n == 32 || *at != digits[n++])) {
            return 0;
        }
    }
    return n > 0;
}

static int find(const struct device *machine, int nmachine, const char *name) {
    char *end;

    if (strncmp(name, "GPU-", 4) == 0) {
        for (int i = 0; i < nmachine; i++) {
            if (is_called(&machine[i], name)) {
                return i;
            }
        }
        return -1;
    }
    long ordinal = strtol(name, &end, 10);
    return *name && *end == 0 && ordinal >= 0 && ordinal < nmachine ? (int)ordinal : -1;
}

CUresult devices_read(void) {
    struct device machine[DEVICES_MAX];
    int nmachine = read_machine(machine);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char names[1024];
    char *rest = names;
    const char *name;

    count = 0;
    snprintf(names, sizeof names, "%s", visible ? visible : "0,1,2,3,4,5,6,7");
    while ((name = strsep(&rest, ",")) && count < DEVICES_MAX) {
        int i = find(machine, nmachine, name);
        if (i < 0) {
            break; /* as the driver does: what comes after a bad entry is not seen */
        }
        devices[count++] = machine[i];
    }
    for (int i = 0; i < count && getenv("FAKECUDA_NO_VMM"); i++) {
        devices[i].has_vmm = devices[i].has_descriptors = devices[i].has_rdma = 0;
    }
    return count > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

struct device *device_find(CUdevice device) {
    return device >= 0 && device < count ? &devices[device] : NULL;
}

CUdevice device_of_uuid(const CUuuid *uuid) {
    for (CUdevice i = 0; i < count; i++) {
        if (memcmp(&devices[i].uuid, uuid, sizeof *uuid) == 0) {
            return i;
        }
    }
    return -1;
}

CUresult cuDeviceGetCount(int *ret_count) {
    BEGIN(DRIVER);
    *ret_count = count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *ret_device, int ordinal) {
    BEGIN(DRIVER);
    if (!device_find(ordinal)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *ret_device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *ret_uuid, CUdevice device) {
    BEGIN(DRIVER);
    if (!device_find(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *ret_uuid = device_find(device)->uuid;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int nbytes, CUdevice device) {
    BEGIN(DRIVER);
    if (!device_find(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    snprintf(name, (size_t)nbytes, "Fake GPU");
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *ret_value, CUdevice_attribute attribute, CUdevice device) {
    const struct device *found = device_find(device);

    BEGIN(DRIVER);
    if (!found) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        *ret_value = found->has_vmm;
        break;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        *ret_value = found->has_descriptors;
        break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        *ret_value = found->has_rdma;
        break;
    default:
        *ret_value = 0;
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *ret_nbytes, CUdevice device) {
    BEGIN(DRIVER);
    if (!device_find(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *ret_nbytes = device_find(device)->nbytes;
    return CUDA_SUCCESS;
}
