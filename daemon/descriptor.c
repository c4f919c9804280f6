#include "descriptor.h"

#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SPARE_MAX = 64 };

int descriptor_for_memory(int fd) {
    struct rlimit limit;

    if (fd < 0) {
        return -errno;
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0) {
        return fd;
    }
    rlim_t spare = limit.rlim_cur / 4 < SPARE_MAX ? limit.rlim_cur / 4 : SPARE_MAX;
    /* The kernel gives the lowest number that is free. */
    if ((rlim_t)fd >= limit.rlim_cur - spare) {
        close(fd);
        return -EMFILE;
    }
    return fd;
}
