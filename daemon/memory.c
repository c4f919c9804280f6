#include "memory.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_SIZE = 8192, FOLDER_SIZE = 4200, PATH_SIZE = 4300 };

/* Reads a small file into `text`; false when it is not there. */
static int read_text(const char *path, char text[TEXT_SIZE]) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, TEXT_SIZE - 1);

    if (fd >= 0) {
        close(fd);
    }
    text[n < 0 ? 0 : n] = '\0';
    return n > 0;
}

/* The number after `key` at the start of a line, 0 when there is none. */
static uint64_t number_after(const char *text, const char *key) {
    size_t length = strlen(key);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0) {
            return strtoull(line + length, NULL, 10);
        }
    }
    return 0;
}

static uint64_t machine_room(void) {
    char text[TEXT_SIZE];

    return read_text("/proc/meminfo", text) ? number_after(text, "MemAvailable:") * 1024
                                            : UINT64_MAX;
}

/* File names of one cgroup version. */
struct files {
    const char *limit, *usage, *reclaimable;
};

static const struct files v2 = {"memory.max", "memory.current", "inactive_file "};
static const struct files v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                "total_inactive_file "};

/* What the cgroup in `folder` still allows; UINT64_MAX: it has no limit, or is not there. */
static uint64_t room_in(const char *folder, const struct files *files) {
    char path[PATH_SIZE];
    char text[TEXT_SIZE];

    snprintf(path, sizeof path, "%s/%s", folder, files->limit);
    if (!read_text(path, text) || strncmp(text, "max", 3) == 0) {
        return UINT64_MAX;
    }
    uint64_t limit = strtoull(text, NULL, 10);
    snprintf(path, sizeof path, "%s/%s", folder, files->usage);
    uint64_t usage = read_text(path, text) ? strtoull(text, NULL, 10) : 0;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    uint64_t reclaimable = read_text(path, text) ? number_after(text, files->reclaimable) : 0;
    usage -= reclaimable < usage ? reclaimable : usage;
    return usage < limit ? limit - usage : 0;
}

/* The least that `path` below `root` and the cgroups above it allow. In a container the path may
 * be the host's: then only the root is there. */
static uint64_t room_above(const char *root, const char *path, const struct files *files) {
    char folder[FOLDER_SIZE];
    uint64_t least = UINT64_MAX;
    size_t root_length = strlen(root);

    snprintf(folder, sizeof folder, "%s%s", root, path);
    for (;;) {
        uint64_t room = room_in(folder, files);
        least = room < least ? room : least;
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < root_length) {
            return least;
        }
        *slash = '\0';
    }
}

/* Finds our cgroup in the text of /proc/self/cgroup; with both versions, the one that has the
 * memory. Returns its path, which ends at a newline, or NULL. */
static const char *find_cgroup(const char *text, int *ret_version) {
    const char *v1_line = strstr(text, ":memory:");
    const char *v2_line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");

    *ret_version = v1_line ? 1 : 2;
    return v1_line ? v1_line + strlen(":memory:") : v2_line ? strchr(v2_line, '/') : NULL;
}

/* The path of our cgroup below the root of its hierarchy; false when there is none. */
static int own_cgroup(char *path, size_t size, int *ret_version) {
    char text[TEXT_SIZE];
    const char *found =
        read_text("/proc/self/cgroup", text) ? find_cgroup(text, ret_version) : NULL;

    if (found) {
        snprintf(path, size, "%.*s", (int)strcspn(found, "\n"), found);
    }
    return found != NULL;
}

static uint64_t cgroup_room(void) {
    char path[FOLDER_SIZE - 64];
    int version;

    if (!own_cgroup(path, sizeof path, &version)) {
        return UINT64_MAX;
    }
    return version == 1 ? room_above("/sys/fs/cgroup/memory", path, &v1)
                        : room_above("/sys/fs/cgroup", path, &v2);
}

void memory_cgroup(char *ret_path, size_t size) {
    int version;

    if (!own_cgroup(ret_path, size, &version)) {
        snprintf(ret_path, size, "?");
    }
}

uint64_t memory_available(const char **ret_limit) {
    uint64_t machine = machine_room();
    uint64_t cgroup = cgroup_room();

    *ret_limit =
        cgroup < machine ? "the memory limit of the daemon's cgroup" : "the memory of this machine";
    return cgroup < machine ? cgroup : machine;
}
