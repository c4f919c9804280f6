#include "import.h"

void imports_init(struct imports *imports) {
    table_init(&imports->segments);
}

int imports_add(struct imports *imports, struct segment *segment) {
    if (table_find(&imports->segments, segment->id)) {
        return 0;
    }
    int r = table_set(&imports->segments, segment->id, segment);
    if (r == 0) {
        segment_import(segment);
    }
    return r;
}

bool imports_remove(struct imports *imports, uint64_t id) {
    struct segment *segment = id ? table_find(&imports->segments, id) : NULL;

    if (segment) {
        table_remove(&imports->segments, id);
        segment_unimport(segment);
    }
    return segment != NULL;
}

void imports_fini(struct imports *imports) {
    size_t cursor = 0;
    uint64_t id;
    void *segment;

    while (table_next(&imports->segments, &cursor, &id, &segment)) {
        segment_unimport(segment);
    }
    table_fini(&imports->segments);
    table_init(&imports->segments);
}

uint64_t imports_dying_nbytes(const struct imports *imports, unsigned device) {
    uint64_t nbytes = 0;
    size_t cursor = 0;
    uint64_t id;
    void *value;

    while (table_next(&imports->segments, &cursor, &id, &value)) {
        const struct segment *segment = value;
        if (segment->state == SEGMENT_LINGERING && segment_device(id) == device) {
            nbytes += segment->nbytes;
        }
    }
    return nbytes;
}
