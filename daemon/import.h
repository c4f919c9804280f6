/*
 * import.h - which segments on devices a client has mapped
 *
 * A MAP of such a segment makes its client an importer, until it says UNMAP or is gone. Each client
 * has one `struct imports`. Knows neither clients nor messages.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "segment.h"
#include "table.h"

struct imports {
    struct table segments; /* of struct segment, by id; they last as long as we have them mapped */
};

void imports_init(struct imports *imports);

/* Lets go of all of them: the client is gone. */
void imports_fini(struct imports *imports);

/* The client maps `segment`, perhaps not for the first time. 0 or -ENOMEM. */
int imports_add(struct imports *imports, struct segment *segment);

/* It has it mapped no more. False: it had not. */
bool imports_remove(struct imports *imports, uint64_t id);

/* Bytes of the dying segments of `device` that the client has mapped. */
uint64_t imports_dying_nbytes(const struct imports *imports, unsigned device);
