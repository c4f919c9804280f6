/*
 * codec.h - the table made from messages.def, and the one check of a received message
 *
 * Knows sizes and opcodes; knows neither sockets nor what a message means.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "messages.h"
#include "status.h"

enum message {
#define CALL(NAME, name, opcode, state, request_tail, reply_tail, reply_fds) \
    MESSAGE_##NAME = (opcode),
#define NOTE(NAME, name, opcode, state, tail, fds) MESSAGE_##NAME = (opcode),
#include "messages.def"
#undef CALL
#undef NOTE
};

enum wire_state { WIRE_NEW, WIRE_READY };

/* What messages.def says about one message. */
struct wire_rule {
    const char *name;
    uint16_t opcode;
    uint8_t is_call;
    uint8_t state;                  /* enum wire_state */
    uint8_t request_fds, reply_fds; /* most descriptors */
    uint32_t request_size, request_tail;
    uint32_t reply_size, reply_tail;
};

/* The rule of `opcode`, or NULL. Static memory. */
const struct wire_rule *wire_rule(uint16_t opcode);

/* Checks a received request (or note) of `nbytes` bytes with `nfds` descriptors, in the order of
 * proto/README.md. Returns NULL and sets *ret_rule, or a text that says which rule was broken. */
const char *wire_check_request(const struct wire_header *header, size_t nbytes, size_t nfds,
                               const struct wire_rule **ret_rule);

/* The same for a reply: with status OK the fixed part and a bounded tail, otherwise a text. */
const char *wire_check_reply(const struct wire_header *header, size_t nbytes, size_t nfds,
                             const struct wire_rule **ret_rule);
