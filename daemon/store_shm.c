#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "bytes.h"
#include "descriptor.h"
#include "log.h"
#include "memory.h"
#include "step.h"

#ifndef MADV_POPULATE_WRITE
#    define MADV_POPULATE_WRITE 23
#endif

#define HUGE_PAGE ((uint64_t)2 << 20)

/* A step is a few milliseconds. */
#define STEPS .unit = 4096, .step = 4 * MIB, .trim_step = 64 * MIB

static int set_size(int fd, uint64_t nbytes) {
    if (nbytes > INT64_MAX) {
        return -EFBIG;
    }
    return ftruncate(fd, (off_t)nbytes) == 0 ? 0 : -errno;
}

static int create_sized(struct backing *backing, int fd, uint64_t nbytes) {
    int r = set_size(fd, nbytes);

    if (r < 0) {
        close(fd);
        return r;
    }
    backing->fd = fd;
    return 0;
}

/* A file there that never has a name: whenever we die, nothing of it stays. */
static int open_nameless(void) {
    int flags = O_RDWR | O_TMPFILE | O_EXCL | O_CLOEXEC;

    return descriptor_for_memory(open("/dev/shm", flags, 0600));
}

static int create_posix(struct backing *backing, uint64_t nbytes) {
    int fd = open_nameless();

    REACHED(FILE_MADE);
    return fd < 0 ? fd : create_sized(backing, fd, nbytes);
}

static int create_memfd(struct backing *backing, uint64_t nbytes) {
    int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = descriptor_for_memory(memfd_create("tensorcx", flags));
    int r = fd < 0 ? fd : create_sized(backing, fd, nbytes);

    if (r == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        r = -errno;
        close(fd);
    }
    return r;
}

static int allocate(int fd, uint64_t offset, uint64_t nbytes) {
    int r;

    do {
        r = posix_fallocate(fd, (off_t)offset, (off_t)nbytes);
    } while (r == EINTR);
    return -r;
}

/* The first pass reserves the pages; they are zeroed by whoever touches them first, which the
 * second pass over the same part is. */
static int commit(struct backing *backing, uint64_t offset, uint64_t nbytes) {
    int r = allocate(backing->fd, offset, nbytes);

    REACHED(PIECE_RESERVED);
    return r < 0 ? r : allocate(backing->fd, offset, nbytes);
}

static int trim(struct backing *backing, uint64_t offset, uint64_t nbytes) {
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;

    return fallocate(backing->fd, mode, (off_t)offset, (off_t)nbytes) == 0 ? 0 : -errno;
}

/* A part of the address space for `nbytes` that begins at a multiple of HUGE_PAGE; *ret_space, of
 * `nbytes` + HUGE_PAGE, is to be unmapped. NULL: none is left. */
static char *aligned_space(uint64_t nbytes, void **ret_space) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *space = mmap(NULL, nbytes + HUGE_PAGE, PROT_NONE, flags, -1, 0);

    if (space == MAP_FAILED) {
        return NULL;
    }
    *ret_space = space;
    return (char *)space + ((0 - (uintptr_t)space) & (HUGE_PAGE - 1));
}

static int populate(int fd, uint64_t offset, uint64_t nbytes, char *at) {
    int flags = MAP_SHARED | MAP_FIXED;

    if (mmap(at, nbytes, PROT_READ | PROT_WRITE, flags, fd, (off_t)offset) == MAP_FAILED) {
        return -errno;
    }
    madvise(at, nbytes, MADV_HUGEPAGE); /* if it fails, pages are small */
    if (madvise(at, nbytes, MADV_POPULATE_WRITE) < 0) {
        return errno == EFAULT ? -ENOMEM : -errno; /* a touch would be a bus error */
    }
    return 0;
}

/* fallocate() gives small pages only; a write through a mapping that asks for them gives huge ones.
 * Nobody can cut the file short under us: it is sealed. */
static int commit_huge(struct backing *backing, uint64_t offset, uint64_t nbytes) {
    void *space;

    if (offset % HUGE_PAGE || nbytes % HUGE_PAGE) {
        return commit(backing, offset, nbytes);
    }
    char *at = aligned_space(nbytes, &space);
    if (!at) {
        return -ENOMEM;
    }
    int r = populate(backing->fd, offset, nbytes, at);
    munmap(space, nbytes + HUGE_PAGE);
    if (r < 0) {
        trim(backing, offset, nbytes);
    }
    return r;
}

static int write_all(struct backing *backing, uint64_t offset, const void *bytes, uint64_t nbytes) {
    const char *from = bytes;

    while (nbytes > 0) {
        ssize_t n = pwrite(backing->fd, from, nbytes, (off_t)offset);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return n < 0 ? -errno : -EIO;
        }
        from += n;
        offset += (uint64_t)n;
        nbytes -= (uint64_t)n;
    }
    return 0;
}

const struct store store_posix = {.name = "posix",
                                  .backing = 0,
                                  STEPS,
                                  .create = create_posix,
                                  .commit = commit,
                                  .write = write_all,
                                  .trim = trim};

const struct store store_memfd = {.name = "memfd",
                                  .backing = 1,
                                  STEPS,
                                  .create = create_memfd,
                                  .commit = commit,
                                  .write = write_all,
                                  .trim = trim};

const struct store store_huge = {.name = "memfd",
                                 .backing = 1,
                                 STEPS,
                                 .create = create_memfd,
                                 .commit = commit_huge,
                                 .write = write_all,
                                 .trim = trim};

/* 0 also where it is a file system that cannot do what we need. */
static uint64_t room_in_dev_shm(void) {
    struct statvfs mount;
    int fd = open_nameless();

    if (fd < 0) {
        return 0;
    }
    int r = fstatvfs(fd, &mount);
    close(fd);
    return r == 0 ? (uint64_t)mount.f_bavail * mount.f_frsize : 0;
}

const struct store *store_choose(const char *backing, uint64_t *capacity) {
    uint64_t room = room_in_dev_shm();

    if (strcmp(backing, "posix") != 0 && memory_has_huge_pages("")) {
        log_info("event=store.huge reason=\"the kernel gives huge pages\" backing=memfd");
        return &store_huge;
    }
    if (strcmp(backing, "memfd") == 0) {
        return &store_memfd;
    }
    if (room >= *capacity) {
        return &store_posix;
    }
    log_info("event=store.room reason=\"/dev/shm has less room than the capacity\" room=%" PRIu64
             " capacity=%" PRIu64 " backing=%s",
             room, *capacity, strcmp(backing, "posix") == 0 ? "posix" : "memfd");
    if (strcmp(backing, "posix") == 0) {
        *capacity = room;
        return &store_posix;
    }
    return &store_memfd;
}
