/*
 * channel_loan.h - buffers of a channel that this process may write to, until they are sent
 *
 * For calls that send; none of these is needed to receive.
 */
#pragma once

#include "channel.h"

struct channel_desc;
struct device;

/* channel_begin(), or STATUS_INVALID: the handle only receives. */
int channel_begin_sending(struct channel_call *call, struct tcx_channel *channel,
                          enum channel_verb verb, double timeout);

/* Waits for a free buffer, which refers to nothing. As channel_goes_on(). */
int channel_loan_buffer(const struct channel_call *call, uint32_t *ret_buffer);

/* Sends one that has its description; on failure it is still the caller's. As channel_goes_on(). */
int channel_send_buffer(const struct channel_call *call, uint32_t buffer);

/* Gives back one that is not sent. */
void channel_give_back(const struct channel_call *call, uint32_t buffer);

/* NULL: the CPU, or there are no buffers yet. */
struct device *channel_buffers_device(const struct channel_call *call);

/* Whether so many bytes on `device` fit a buffer; a channel without size gets one that they fit.
 * Where there is no memory for all buffers there may be for this message alone, which then goes by
 * reference. As seat_size(). */
int channel_find_room(const struct channel_call *call, uint64_t nbytes, const struct device *device,
                      int *ret_fits);

/* The description of what lies in a buffer, as it is on its device. */
void channel_describe_in_buffer(const struct channel_call *call, const tcx_array_t *array,
                                struct channel_desc *ret_desc);
