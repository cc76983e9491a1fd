/* Kills the process before its n-th call that changes files. kill_at() or the
 * environment's KILL_AT sets n. For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long left = -1;

void kill_at(long n) { left = n; }
long calls_left(void) { return left; }

__attribute__((constructor)) static void begin(void) {
  const char* named = getenv("KILL_AT");
  if (named) left = atol(named);
}

static void count(void) {
  if (left >= 0 && atomic_fetch_sub(&left, 1) == 0) kill(getpid(), SIGKILL);
}

#define COUNTED(type, name, parameters, arguments)                         \
  type name parameters {                                                   \
    static type(*next) parameters;                                         \
    if (!next) next = (type(*) parameters)dlsym(RTLD_NEXT, #name);         \
    count();                                                               \
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
COUNTED(int, unlink, (const char* a), (a))
COUNTED(int, unlinkat, (int a, const char* b, int c), (a, b, c))
COUNTED(int, mkdir, (const char* a, mode_t b), (a, b))
