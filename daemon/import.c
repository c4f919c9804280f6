#include "import.h"

#include <errno.h>
#include <stdlib.h>

#include "step.h"

void imports_init(struct imports *imports) {
    table_init(&imports->by_segment);
}

static int import_begin(struct imports *imports, struct segment *segment) {
    struct import *import = malloc(sizeof *import);

    if (!import || table_set(&imports->by_segment, segment->id, import) < 0) {
        free(import);
        return -ENOMEM;
    }
    *import = (struct import){.segment = segment, .maps = 1};
    segment_import(segment);
    REACHED(IMPORT_BEGUN);
    return 0;
}

int imports_add(struct imports *imports, struct segment *segment) {
    struct import *import = table_find(&imports->by_segment, segment->id);

    if (!import) {
        return import_begin(imports, segment);
    }
    import->maps++;
    return 0;
}

bool imports_remove(struct imports *imports, uint64_t id) {
    bool is_id = id && id < UINT64_MAX; /* the table knows no others */
    struct import *import = is_id ? table_find(&imports->by_segment, id) : NULL;

    if (!import) {
        return false;
    }
    if (--import->maps == 0) {
        table_remove(&imports->by_segment, id);
        segment_unimport(import->segment);
        free(import);
        REACHED(IMPORT_ENDED);
    }
    return true;
}

void imports_fini(struct imports *imports) {
    size_t cursor = 0;
    uint64_t id;
    void *value;

    while (table_next(&imports->by_segment, &cursor, &id, &value)) {
        segment_unimport(((struct import *)value)->segment);
        free(value);
    }
    REACHED(IMPORTS_FORGOTTEN);
    table_fini(&imports->by_segment);
    table_init(&imports->by_segment);
}

uint64_t imports_dying_nbytes(const struct imports *imports, unsigned device) {
    uint64_t nbytes = 0;
    size_t cursor = 0;
    uint64_t id;
    void *value;

    while (table_next(&imports->by_segment, &cursor, &id, &value)) {
        const struct segment *segment = ((const struct import *)value)->segment;
        if (segment->state == SEGMENT_LINGERING && segment_device(id) == device) {
            nbytes += segment->nbytes;
        }
    }
    return nbytes;
}
