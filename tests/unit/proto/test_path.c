/* Where the socket is, and which places are trusted. */
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "fixture.h"
#include "path.h"
#include "status.h"

static char folder[64];
static char path[PATH_SIZE];
static char text[PATH_TEXT_SIZE];

/* An empty folder of ours, and `path` in it. */
static void given_folder(void) {
    strcpy(folder, "/tmp/tensorcx-path-XXXXXX");
    EXPECT_TRUE(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/d.sock", folder);
}

static void remove_folder(void) {
    unlink(path);
    EXPECT_EQ(0, rmdir(folder));
}

static void given_socket(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    memcpy(address.sun_path, path, sizeof address.sun_path);
    EXPECT_EQ(0, bind(fd, (struct sockaddr *)&address, sizeof address));
    close(fd);
}

static void bare_environment(void) {
    unsetenv("TENSORCX_SOCKET");
    unsetenv("XDG_RUNTIME_DIR");
}

/* ------------------------------------------------------------------------------------ resolving */

TEST(what_is_given_goes_before_the_environment) {
    char found[PATH_SIZE];

    setenv("TENSORCX_SOCKET", "/run/a.sock", 1);
    EXPECT_EQ(STATUS_OK, path_resolve("/run/b.sock", found, text));
    EXPECT_STR_EQ("/run/b.sock", found);
    EXPECT_EQ(STATUS_OK, path_resolve(NULL, found, text));
    EXPECT_STR_EQ("/run/a.sock", found);
    EXPECT_EQ(STATUS_OK, path_resolve("", found, text));
    EXPECT_STR_EQ("/run/a.sock", found);
}

TEST(a_runtime_folder_of_ours_is_used) {
    char expected[PATH_SIZE];
    char found[PATH_SIZE];

    bare_environment();
    given_folder();
    setenv("XDG_RUNTIME_DIR", folder, 1);
    snprintf(expected, sizeof expected, "%s/tensorcx/tensorcxd.sock", folder);
    EXPECT_EQ(STATUS_OK, path_resolve(NULL, found, text));
    EXPECT_STR_EQ(expected, found);
    remove_folder();
}

TEST(a_runtime_folder_that_is_not_there_is_passed_over) {
    char found[PATH_SIZE];

    bare_environment();
    setenv("XDG_RUNTIME_DIR", "/tmp/no such folder", 1);
    EXPECT_EQ(STATUS_OK, path_resolve(NULL, found, text));
    EXPECT_TRUE(strstr(found, "no such folder") == NULL);
    EXPECT_TRUE(strstr(found, "tensorcx") != NULL);
}

TEST(a_relative_path_becomes_absolute) {
    char expected[PATH_SIZE];
    char found[PATH_SIZE];

    given_folder();
    EXPECT_EQ(0, chdir(folder));
    snprintf(expected, sizeof expected, "%s/x/d.sock", folder);
    EXPECT_EQ(STATUS_OK, path_resolve("x/d.sock", found, text));
    EXPECT_STR_EQ(expected, found);
    EXPECT_EQ(0, chdir("/"));
    remove_folder();
}

TEST(a_path_may_have_107_bytes_and_no_more) {
    char longest[PATH_SIZE + 1];
    char found[PATH_SIZE] = "untouched";

    memset(longest, 'x', sizeof longest);
    longest[0] = '/';
    longest[PATH_SIZE] = '\0';
    EXPECT_EQ(STATUS_INVALID, path_resolve(longest, found, text));
    EXPECT_STR_EQ("untouched", found);
    EXPECT_TRUE(strstr(text, "has 108 bytes") != NULL && strstr(text, "at most 107") != NULL);
    longest[PATH_SIZE - 1] = '\0';
    EXPECT_EQ(STATUS_OK, path_resolve(longest, found, text));
    EXPECT_STR_EQ(longest, found);
}

/* ------------------------------------------------------------------------------------- checking */

TEST(a_socket_of_ours_in_a_folder_of_ours_is_trusted) {
    given_folder();
    EXPECT_EQ(STATUS_NOT_FOUND, path_check(path, text));
    given_socket();
    EXPECT_EQ(STATUS_OK, path_check(path, text));
    remove_folder();
}

TEST(a_folder_that_is_not_there_means_no_daemon) {
    EXPECT_EQ(STATUS_NOT_FOUND, path_check("/tmp/no such folder/d.sock", text));
}

TEST(a_plain_file_is_refused) {
    given_folder();
    fclose(fopen(path, "w"));
    EXPECT_EQ(STATUS_UNAVAILABLE, path_check(path, text));
    EXPECT_TRUE(strstr(text, "it is not a socket") != NULL);
    remove_folder();
}

TEST(links_are_refused) {
    char link[PATH_SIZE];

    given_folder();
    EXPECT_EQ(0, symlink("/dev/null", path));
    EXPECT_EQ(STATUS_DENIED, path_check(path, text));
    EXPECT_TRUE(strstr(text, "symbolic link") != NULL);
    unlink(path);

    given_socket();
    snprintf(link, sizeof link, "%.60s-link", folder);
    EXPECT_EQ(0, symlink(folder, link));
    char through[PATH_SIZE + 8];
    snprintf(through, sizeof through, "%s/d.sock", link);
    EXPECT_EQ(STATUS_DENIED, path_check(through, text));
    unlink(link);
    remove_folder();
}

TEST(a_folder_where_others_may_write_is_refused_unless_it_is_sticky) {
    given_folder();
    given_socket();
    EXPECT_EQ(0, chmod(folder, 0777));
    EXPECT_EQ(STATUS_DENIED, path_check(path, text));
    EXPECT_TRUE(strstr(text, "chmod go-w") != NULL);
    EXPECT_EQ(0, chmod(folder, 01777));
    EXPECT_EQ(STATUS_OK, path_check(path, text));
    remove_folder();
}

TEST(what_belongs_to_somebody_else_is_refused) {
    bare_environment();
    if (geteuid() != 0) {
        return; /* only root can give a file away */
    }
    given_folder();
    given_socket();
    EXPECT_EQ(0, chown(path, 65534, 65534));
    EXPECT_EQ(STATUS_DENIED, path_check(path, text));
    EXPECT_TRUE(strstr(text, "d.sock is owned by user 65534") != NULL);
    EXPECT_EQ(0, chown(folder, 65534, 65534));
    EXPECT_EQ(STATUS_DENIED, path_check(path, text));
    EXPECT_TRUE(strstr(text, "folder") != NULL && strstr(text, "user 65534") != NULL);
    remove_folder();
}

TEST(the_folder_is_made_for_us_alone) {
    char socket[PATH_SIZE];
    char made[PATH_SIZE];
    struct stat info;

    given_folder();
    umask(0);
    snprintf(made, sizeof made, "%.60s/made", folder);
    snprintf(socket, sizeof socket, "%.60s/made/d.sock", folder);
    EXPECT_EQ(STATUS_OK, path_make_folder(socket, false, text));
    EXPECT_EQ(0, stat(made, &info));
    EXPECT_EQ(0700, info.st_mode & 07777);
    EXPECT_EQ(STATUS_OK, path_make_folder(socket, false, text));
    EXPECT_EQ(STATUS_DENIED, path_make_folder(socket, true, text));
    EXPECT_TRUE(strstr(text, "chmod 711"));
    EXPECT_EQ(0, rmdir(made));
    umask(077);
    EXPECT_EQ(STATUS_OK, path_make_folder(socket, true, text));
    EXPECT_EQ(0, stat(made, &info));
    EXPECT_EQ(0711, info.st_mode & 07777);
    EXPECT_EQ(STATUS_OK, path_make_folder(socket, true, text));
    EXPECT_EQ(0, rmdir(made));

    snprintf(socket, sizeof socket, "%.60s/no/such/d.sock", folder);
    EXPECT_EQ(STATUS_SYSTEM, path_make_folder(socket, false, text));
    remove_folder();
}

TEST(a_user_is_trusted_that_the_environment_names) {
    uid_t other = geteuid() + 1;
    char list[64];

    EXPECT_TRUE(path_trusts(geteuid()) && path_trusts(0));
    unsetenv("TENSORCX_TRUST_UID");
    EXPECT_TRUE(!path_trusts(other));
    snprintf(list, sizeof list, "7,%u", (unsigned)other);
    setenv("TENSORCX_TRUST_UID", list, 1);
    EXPECT_TRUE(path_trusts(other) && path_trusts(7) && !path_trusts(other + 1));
    snprintf(list, sizeof list, "%u,", (unsigned)other);
    setenv("TENSORCX_TRUST_UID", list, 1);
    EXPECT_TRUE(!path_trusts(other)); /* no list: nobody is trusted by mistake */
}
