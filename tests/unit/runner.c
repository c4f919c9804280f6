/*
 * runner.c - main() of every C test program: runs each test in a process of its own
 *
 *     test_x [part of a name]     runs the tests whose names contain it
 */
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "fixture.h"

#define TIMEOUT_SECONDS 60 /* so that a hang is a failure; not a measurement */

static struct test *first;
static struct test **last = &first;

void test_register(struct test *test) {
    *last = test;
    last = &test->next;
}

int count_descriptors(void) {
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    while (readdir(dir)) {
        count++;
    }
    closedir(dir);
    return count;
}

/* The child. Leaves by exit(), so that a leak checker has its say. */
_Noreturn static void run(const struct test *test) {
    const char *seconds = getenv("TEST_TIMEOUT");

    setpgid(0, 0);
    alarm(seconds ? (unsigned)atoi(seconds) : TIMEOUT_SECONDS);
    int before = count_descriptors();
    test->run();
    int after = count_descriptors();
    if (before != after) {
        TEST_FAILED("%s: %d descriptors before, %d after", test->name, before, after);
    }
    exit(0);
}

static int passes(const struct test *test) {
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        run(test);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0) {
        perror("runner");
        exit(2);
    }
    kill(-pid, SIGKILL); /* whatever the test has started */

    int ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (WIFSIGNALED(status)) {
        fprintf(stderr, "%s: %s\n", test->name, strsignal(WTERMSIG(status)));
    }
    return ok != test->must_fail;
}

int main(int argc, char **argv) {
    const char *part = argc > 1 ? argv[1] : "";
    int passed = 0;
    int failed = 0;

    for (const struct test *test = first; test; test = test->next) {
        if (!strstr(test->name, part)) {
            continue;
        }
        fflush(NULL);
        int ok = passes(test);
        passed += ok;
        failed += !ok;
        if (!ok) {
            printf("FAILED %s\n", test->name);
        }
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0 || passed == 0;
}
