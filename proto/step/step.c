/*
 * step.c - counts the steps that a process reaches, and lets a signal come at a chosen one
 *
 * Which one, and when, a test says at any time in a page of the file $TENSORCX_STEPS
 * (tests/fault/steps.py has the same fields). Only in a build with STEPS=1.
 */
#include "step.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void (*step_hook)(enum step reached);

struct page {
    int step;   /* the chosen one; STEP_COUNT or more: none */
    int at;     /* the signal comes the at-th time that it is reached, from 1 up */
    int signal; /* SIGKILL, SIGSTOP */
    int pid;    /* of whom it came to; 0: to none so far */
    int hits[STEP_COUNT];
};

static struct page *page;

static void reach(enum step step) {
    int hits = __atomic_add_fetch(&page->hits[step], 1, __ATOMIC_SEQ_CST);

    if ((int)step == page->step && hits == page->at) {
        __atomic_store_n(&page->pid, getpid(), __ATOMIC_SEQ_CST);
        raise(page->signal);
    }
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("TENSORCX_STEPS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

    if (!path) {
        return;
    }
    page =
        fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        abort();
    }
    close(fd);
    step_hook = reach;
}
