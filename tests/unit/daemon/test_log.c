/* The log: a flood does not fill the disk. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture.h"
#include "log.h"

/* How many lines of the file contain `text`. */
static int count_lines(const char *path, const char *text) {
    char line[4096];
    int count = 0;
    FILE *file = fopen(path, "re");

    EXPECT_TRUE(file != NULL);
    while (fgets(line, sizeof line, file)) {
        count += strstr(line, text) != NULL;
    }
    fclose(file);
    return count;
}

TEST(a_flood_is_cut_and_counted) {
    char path[] = "/tmp/tcx-log-XXXXXX";
    int fd = mkstemp(path);

    EXPECT_TRUE(fd >= 0);
    close(fd);
    EXPECT_TRUE(log_open(path) == 0);
    for (int i = 0; i < 5000; i++) {
        log_warn("event=test.flood number=%d", i);
    }
    usleep(300 * 1000); /* room for a line or three */
    log_warn("event=test.after");
    log_open(NULL);
    int written = count_lines(path, "event=test.flood");
    EXPECT_TRUE(written >= 1000 && written < 5000);
    EXPECT_TRUE(count_lines(path, "event=test.after") == 1);
    EXPECT_TRUE(count_lines(path, "event=log.dropped lines=") == 1);
    unlink(path);
}
