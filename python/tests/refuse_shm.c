// Preloaded: every attempt to open a file in /dev/shm fails with REFUSAL, as if
// /dev/shm were full, read-only, or missing.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/types.h>

static int refused(const char* path) {
  if (strncmp(path, "/dev/shm", 8) != 0) return 0;
  errno = REFUSAL;
  return 1;
}

#define REPLACE(name)                                          \
  int name(const char* path, int flags, ...) {                 \
    va_list rest;                                              \
    va_start(rest, flags);                                     \
    const mode_t mode = va_arg(rest, mode_t);                  \
    va_end(rest);                                              \
    if (refused(path)) return -1;                              \
    int (*next)(const char*, int, ...) = dlsym(RTLD_NEXT, #name); \
    return next(path, flags, mode);                            \
  }
REPLACE(open)
REPLACE(open64)

#define REPLACE_AT(name)                                            \
  int name(int folder, const char* path, int flags, ...) {          \
    va_list rest;                                                   \
    va_start(rest, flags);                                          \
    const mode_t mode = va_arg(rest, mode_t);                       \
    va_end(rest);                                                   \
    if (refused(path)) return -1;                                   \
    int (*next)(int, const char*, int, ...) = dlsym(RTLD_NEXT, #name); \
    return next(folder, path, flags, mode);                         \
  }
REPLACE_AT(openat)
REPLACE_AT(openat64)

int shm_open(const char* name, int flags, mode_t mode) {
  (void)name, (void)flags, (void)mode;
  errno = REFUSAL;
  return -1;
}
