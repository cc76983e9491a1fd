/* Logs calls that make files durable or change names to the file that
 * WATCH_LOG names, one a line, and lets some fail: FAIL_FSYNC is the number of
 * the call of fsync() or fdatasync() that fails with EIO, from 1 on; FAIL_LINK
 * is the number of the call of linkat() that fails with ENOSPC; FAIL_CLOSE is a
 * part of the name of files whose close() fails with ENOSPC if they were opened
 * for writing, as on network file systems; FAIL_FLOCK is the errno with which
 * flock() fails. For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int syncs, links;

static void name_of(int fd, char* out, size_t size) {
  char link[64];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, out, size - 1);
  out[length < 0 ? 0 : length] = 0;
}

static void say(const char* call, const char* name) {
  const char* log = getenv("WATCH_LOG");
  if (!log) return;
  char line[8200];
  int length = snprintf(line, sizeof(line), "%s %s\n", call, name);
  int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, line, (size_t)length) != length) abort();
  ((int (*)(int))dlsym(RTLD_NEXT, "close"))(fd);
}

static int sync_of(const char* call, int fd) {
  char name[4096];
  name_of(fd, name, sizeof(name));
  say(call, name);
  const char* at = getenv("FAIL_FSYNC");
  if (at && atomic_fetch_add(&syncs, 1) + 1 == atoi(at)) {
    errno = EIO;
    return -1;
  }
  return ((int (*)(int))dlsym(RTLD_NEXT, call))(fd);
}

int fsync(int fd) { return sync_of("fsync", fd); }
int fdatasync(int fd) { return sync_of("fdatasync", fd); }

int flock(int fd, int operation) {
  const char* error = getenv("FAIL_FLOCK");
  if (!error) return ((int (*)(int, int))dlsym(RTLD_NEXT, "flock"))(fd, operation);
  errno = atoi(error);
  return -1;
}

int linkat(int from, const char* name, int to, const char* other, int flags) {
  const char* at = getenv("FAIL_LINK");
  if (at && atomic_fetch_add(&links, 1) + 1 == atoi(at)) {
    errno = ENOSPC;
    return -1;
  }
  return ((int (*)(int, const char*, int, const char*, int))dlsym(
      RTLD_NEXT, "linkat"))(from, name, to, other, flags);
}

int unlink(const char* name) {
  say("unlink", name);
  return ((int (*)(const char*))dlsym(RTLD_NEXT, "unlink"))(name);
}

int rename(const char* from, const char* to) {
  say("rename", to);
  return ((int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename"))(from,
                                                                         to);
}

int renameat2(int from, const char* name, int to, const char* other,
              unsigned flags) {
  say("renameat2", other);
  return ((int (*)(int, const char*, int, const char*, unsigned))dlsym(
      RTLD_NEXT, "renameat2"))(from, name, to, other, flags);
}

int close(int fd) {
  const char* part = getenv("FAIL_CLOSE");
  int fails = 0;
  if (part) {
    char name[4096];
    name_of(fd, name, sizeof(name));
    int flags = fcntl(fd, F_GETFL);
    fails = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY &&
            strstr(name, part) != NULL;
  }
  int done = ((int (*)(int))dlsym(RTLD_NEXT, "close"))(fd);
  if (!fails) return done;
  errno = ENOSPC;
  return -1;
}
