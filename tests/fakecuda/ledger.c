/* The memory of all processes: files in one folder, each locked by whoever has it (README.md). */
#include "fake.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_SIZE 96
#define FRESH     0xa5 /* memory comes with somebody's old bytes */
#define POISON    0xdd
#define FILL_MAX  ((size_t)4 << 20) /* so much of a fresh allocation */

static void folder_path(char path[PATH_MAX]) {
    const char *folder = getenv("FAKECUDA_DIR");

    if (folder) {
        snprintf(path, PATH_MAX, "%s", folder);
    } else {
        snprintf(path, PATH_MAX, "/dev/shm/fakecuda-%d", (int)getuid());
        mkdir(path, 0700);
    }
}

/* Nobody else changes the folder until it is closed. -1: no descriptors are left, or a test has
 * removed it, and this process has outlived the test. */
static int folder_lock(void) {
    char path[PATH_MAX];

    folder_path(path);
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOENT)) {
        return -1;
    }
    if (folder < 0 || flock(folder, LOCK_EX) < 0) {
        fprintf(stderr, "fakecuda: cannot use the folder %s: %s\n", path, strerror(errno));
        abort();
    }
    return folder;
}

static void file_prefix(const CUuuid *uuid, char name[NAME_SIZE]) {
    char *to = name + sprintf(name, "fakecuda:");

    for (int i = 0; i < 16; i++) {
        to += sprintf(to, "%02x", uuid->bytes[i]);
    }
    sprintf(to, ":");
}

static void file_name(const struct identity *identity, char name[NAME_SIZE]) {
    file_prefix(&identity->uuid, name);
    sprintf(name + strlen(name), "%d-%d", identity->pid, identity->number);
}

/* The bytes of a file that somebody has; a file that nobody has is removed. */
static size_t file_bytes(int folder, const char *name) {
    struct stat status = {0};
    int fd = openat(folder, name, O_RDWR | O_CLOEXEC);

    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) {
        unlinkat(folder, name, 0);
    } else {
        fstatat(folder, name, &status, 0);
    }
    if (fd >= 0) {
        close(fd);
    }
    return (size_t)status.st_size;
}

static size_t folder_used(int folder, const CUuuid *uuid) {
    char prefix[NAME_SIZE];
    size_t used = 0;
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = again < 0 ? NULL : fdopendir(again);
    const struct dirent *entry;

    file_prefix(uuid, prefix);
    while (dir && (entry = readdir(dir))) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0) {
            used += file_bytes(folder, entry->d_name);
        }
    }
    if (dir) {
        closedir(dir);
    }
    return used;
}

static void fill(int fd, int value, size_t nbytes) {
    static char bytes[1 << 16];

    memset(bytes, value, sizeof bytes); /* under the folder's lock */
    for (size_t at = 0; at < nbytes; at += sizeof bytes) {
        size_t n = nbytes - at < sizeof bytes ? nbytes - at : sizeof bytes;
        if (pwrite(fd, bytes, n, (off_t)at) != (ssize_t)n) {
            perror("fakecuda: no memory on the machine");
            abort();
        }
    }
}

int ledger_create(const struct device *device, size_t nbytes, struct identity *ret_identity) {
    static atomic_int number;
    int folder = folder_lock();
    struct identity identity = {.uuid = device->uuid, .pid = getpid()};
    char name[NAME_SIZE];
    int fd = -1;

    size_t used = folder_used(folder, &device->uuid);
    if (used > device->nbytes || nbytes > device->nbytes - used) {
        errno = ENOMEM;
    } else {
        do {
            identity.number = atomic_fetch_add(&number, 1);
            file_name(&identity, name);
            fd = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        } while (fd < 0 && errno == EEXIST);
        if (fd >= 0 && (flock(fd, LOCK_SH) < 0 || ftruncate(fd, (off_t)nbytes) < 0)) {
            abort();
        }
    }
    if (fd >= 0) {
        fill(fd, FRESH, nbytes < FILL_MAX ? nbytes : FILL_MAX);
        *ret_identity = identity;
    }
    if (folder >= 0) {
        close(folder);
    }
    return fd;
}

int ledger_open(const struct identity *identity) {
    int folder = folder_lock();
    char name[NAME_SIZE];

    file_name(identity, name);
    int fd = file_bytes(folder, name) > 0 ? openat(folder, name, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) {
        flock(fd, LOCK_SH);
    }
    close(folder);
    return fd;
}

void ledger_free(const struct identity *identity) {
    int folder = folder_lock();
    char name[NAME_SIZE], freed[NAME_SIZE + 8];

    file_name(identity, name);
    size_t nbytes = file_bytes(folder, name);
    int fd = nbytes > 0 ? openat(folder, name, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fill(fd, POISON, nbytes);
        close(fd);
        snprintf(freed, sizeof freed, "%s:freed", name); /* counts until the last one closes it */
        renameat(folder, name, folder, freed);
    }
    close(folder);
}

size_t ledger_used(const CUuuid *uuid) {
    int folder = folder_lock();
    size_t used = folder_used(folder, uuid);

    close(folder);
    return used;
}

int ledger_identify(int fd, CUuuid *ret_uuid, size_t *ret_nbytes) {
    char link[32], path[PATH_MAX + 1], folder[PATH_MAX];
    struct stat status;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX);
    if (n < 0 || fstat(fd, &status) < 0) {
        return 0;
    }
    path[n] = 0;
    folder_path(folder);
    const char *name = strrchr(path, '/');
    if (!name || strncmp(path, folder, strlen(folder)) != 0 ||
        strncmp(name, "/fakecuda:", strlen("/fakecuda:")) != 0) {
        return 0;
    }
    for (int i = 0; i < 16; i++) {
        unsigned int byte;
        if (sscanf(name + strlen("/fakecuda:") + 2 * i, "%2x", &byte) != 1) {
            return 0;
        }
        ret_uuid->bytes[i] = (unsigned char)byte;
    }
    *ret_nbytes = (size_t)status.st_size;
    return 1;
}
