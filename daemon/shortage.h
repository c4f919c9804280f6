/*
 * shortage.h - tells a user why there is no memory, in numbers
 */
#pragma once

#include <stdint.h>

#include "segment.h"
#include "server.h"

/* Writes what was asked of `segments`, what the limit is, who holds most and what to do. Returns
 * the status to answer: STATUS_OUT_OF_MEMORY; or, when it is not memory that is missing,
 * STATUS_SYSTEM or STATUS_DEVICE. */
int shortage_text(const struct server *server, const struct segments *segments, uint64_t nbytes,
                  const struct shortage *shortage, char ret_text[WIRE_TEXT_MAX + 1]);
