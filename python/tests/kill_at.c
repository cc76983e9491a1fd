/* Kills the process before its n-th call that changes files. kill_at() or the
 * environment's KILL_AT sets n. KILL_WITH is another signal than SIGKILL, after
 * which the call is made; with ERROR_AT the call fails instead, with this errno.
 * CALLS_TO is a file that gets the number of calls at the end. For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long left = -1, made = 0;
static int error, killing = SIGKILL;

void kill_at(long n) { left = n; }
long calls_left(void) { return left; }

__attribute__((constructor)) static void begin(void) {
  const char* named = getenv("KILL_AT");
  if (named) left = atol(named);
  const char* with = getenv("KILL_WITH");
  if (with) killing = atoi(with);
  const char* failing = getenv("ERROR_AT");
  if (failing) error = atoi(failing);
}

__attribute__((destructor)) static void end(void) {
  const char* path = getenv("CALLS_TO");
  FILE* file = path ? fopen(path, "w") : NULL;
  if (!file) return;
  fprintf(file, "%ld", (long)made);
  fclose(file);
}

/* Returns whether the call is to fail. */
static int count(void) {
  if (left >= 0) atomic_fetch_add(&made, 1);
  if (left < 0 || atomic_fetch_sub(&left, 1) != 0) return 0;
  if (!error) kill(getpid(), killing);
  errno = error;
  return error != 0;
}

#define COUNTED(type, name, parameters, arguments)                         \
  type name parameters {                                                   \
    static type(*next) parameters;                                         \
    if (!next) next = (type(*) parameters)dlsym(RTLD_NEXT, #name);         \
    if (count()) return -1;                                                \
    return next arguments;                                                 \
  }

COUNTED(ssize_t, pwrite64, (int fd, const void* b, size_t n, off_t at),
        (fd, b, n, at))
COUNTED(ssize_t, pwrite, (int fd, const void* b, size_t n, off_t at),
        (fd, b, n, at))
COUNTED(ssize_t, pwritev64, (int fd, const struct iovec* v, int n, off_t at),
        (fd, v, n, at))
COUNTED(ssize_t, pwritev, (int fd, const struct iovec* v, int n, off_t at),
        (fd, v, n, at))
COUNTED(int, fsync, (int fd), (fd))
COUNTED(int, fdatasync, (int fd), (fd))
COUNTED(int, ftruncate64, (int fd, off_t n), (fd, n))
COUNTED(int, ftruncate, (int fd, off_t n), (fd, n))
COUNTED(int, linkat, (int a, const char* b, int c, const char* d, int e),
        (a, b, c, d, e))
COUNTED(int, rename, (const char* a, const char* b), (a, b))
COUNTED(int, renameat, (int a, const char* b, int c, const char* d),
        (a, b, c, d))
COUNTED(int, renameat2,
        (int a, const char* b, int c, const char* d, unsigned flags),
        (a, b, c, d, flags))
COUNTED(int, fallocate64, (int fd, int mode, off_t at, off_t n),
        (fd, mode, at, n))
COUNTED(int, fallocate, (int fd, int mode, off_t at, off_t n),
        (fd, mode, at, n))
COUNTED(ssize_t, copy_file_range,
        (int a, off64_t* b, int c, off64_t* d, size_t n, unsigned flags),
        (a, b, c, d, n, flags))
COUNTED(int, unlink, (const char* a), (a))
COUNTED(int, unlinkat, (int a, const char* b, int c), (a, b, c))
COUNTED(int, mkdir, (const char* a, mode_t b), (a, b))
