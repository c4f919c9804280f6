/*
 * import.h - which segments on devices a client has mapped
 *
 * A MAP of such a segment makes its client an importer, until it has said UNMAP as often or is
 * gone. Each client has one `struct imports`. Knows neither clients nor messages.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "segment.h"
#include "table.h"

struct import {
    struct segment *segment; /* borrowed: it lasts as long as it is imported */
    uint64_t maps;           /* not taken back by UNMAP */
};

struct imports {
    struct table by_segment; /* of struct import; owned */
};

void imports_init(struct imports *imports);

/* Lets go of all of them: the client is gone. */
void imports_fini(struct imports *imports);

/* The client maps `segment`, once more. 0 or -ENOMEM. */
int imports_add(struct imports *imports, struct segment *segment);

/* It takes that back, once. False: it had nothing mapped. */
bool imports_remove(struct imports *imports, uint64_t id);

/* Bytes of the dying segments of `device` that the client has mapped. */
uint64_t imports_dying_nbytes(const struct imports *imports, unsigned device);
