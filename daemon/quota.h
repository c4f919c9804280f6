/*
 * quota.h - what one client may make: the limits of the options, and the words of a refusal
 */
#pragma once

#include "account.h"
#include "call.h"

/* Whether the client may make `amount` more. STATUS_OK, or what call_fail() returned: the text
 * names the option. */
int quota_check(struct call *call, enum account_kind kind, uint64_t amount);
