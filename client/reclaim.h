/*
 * reclaim.h - a thread that gives memory of CUDA devices back, when nothing runs there any more
 * that may use it
 *
 * A tensor on a device whose last reference goes may still be read by kernels that were launched
 * before. So it is queued; the thread waits for all work of this process on the device, and only
 * then lets go of what the tensor kept: a storage, a channel's buffer, a framework's memory. It
 * also unmaps segments that nobody has used for a second. Who lets go never waits: not while it
 * records a CUDA graph, not in a garbage collector, not at exit.
 *
 * One thread per process, from the first use of a device on. exit() waits for it, up to a second.
 * Its lock comes after a session's.
 */
#pragma once

#include <stddef.h>

struct session;
struct tcx_tensor;

/* Starts it, if it does not run. STATUS_OK, STATUS_SYSTEM. */
int reclaim_start(void);

/* Takes a tensor on a device that has no reference any more. 0: there is no such thread (in a child
 * of fork(), where no CUDA is): the caller destroys the tensor. Never waits. */
int reclaim_tensor(struct tcx_tensor *tensor);

/* The session has segments on devices, or no more of them. Lock of the session held. */
void reclaim_watch(struct session *session);
void reclaim_unwatch(struct session *session);

/* A segment on a device is idle. */
void reclaim_wake(void);

/* How much has been given back; only to be compared. */
size_t reclaim_progress(void);

/* Memory of a device is short: waits, for a while, until all that was let go of by now is given
 * back, no idle segment is mapped, and the daemon of the session that asks knows. 0: this process
 * has nothing to give back, and gave nothing back since the progress was `since`. No lock held. */
int reclaim_hurry(const struct session *session, size_t since);

/* Whether somebody waits for that. */
int reclaim_is_hurried(void);

/* For fork.c: around fork(); in the child, with all locks held, the thread is gone, and after they
 * are free what it had is dropped. */
void reclaim_lock(void);
void reclaim_unlock(void);
void reclaim_start_over(void);
void reclaim_drop_inherited(void);
