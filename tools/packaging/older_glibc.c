// Functions that programs compiled on this system need from its C library and
// that glibc 2.28 lacks. Linked into wheels; the names are not visible outside.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

// glibc 2.32: whether the process has never had a second thread. 0 is always
// correct.
char __libc_single_threaded = 0;

// glibc 2.33 turned these inline functions into real ones, which take the
// version of the layout of struct stat.
#ifdef __x86_64__
#define LAYOUT 1
#else
#define LAYOUT 0
#endif
int __xstat(int, const char*, struct stat*);
int __lxstat(int, const char*, struct stat*);
int __fxstat(int, int, struct stat*);
int __fxstatat(int, int, const char*, struct stat*, int);

int stat(const char* path, struct stat* out) { return __xstat(LAYOUT, path, out); }
int lstat(const char* path, struct stat* out) { return __lxstat(LAYOUT, path, out); }
int fstat(int fd, struct stat* out) { return __fxstat(LAYOUT, fd, out); }
int fstatat(int fd, const char* path, struct stat* out, int flags) {
  return __fxstatat(LAYOUT, fd, path, out, flags);
}
int stat64(const char* path, struct stat64* out) {
  return __xstat(LAYOUT, path, (struct stat*)out);
}
int lstat64(const char* path, struct stat64* out) {
  return __lxstat(LAYOUT, path, (struct stat*)out);
}
int fstat64(int fd, struct stat64* out) {
  return __fxstat(LAYOUT, fd, (struct stat*)out);
}

// glibc links these two into every shared library, with a handle of its own.
extern int __cxa_atexit(void (*)(void*), void*, void*);
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void*);
extern void* __dso_handle __attribute__((visibility("hidden")));

int atexit(void (*function)(void)) {
  return __cxa_atexit((void (*)(void*))function, NULL, &__dso_handle);
}

int pthread_atfork(void (*before)(void), void (*parent)(void), void (*child)(void)) {
  return __register_atfork(before, parent, child, &__dso_handle);
}

// glibc 2.36. As in glibc, ends the process if there is no randomness.
uint32_t arc4random(void) {
  uint32_t number;
  if (getentropy(&number, sizeof number) != 0) abort();
  return number;
}

// glibc 2.30. If it is missing, the wait ends after at most a second: the
// callers check their own clock and wait again.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           clockid_t clock, const struct timespec* until) {
  typedef int (*Wait)(pthread_cond_t*, pthread_mutex_t*, clockid_t,
                      const struct timespec*);
  static Wait wait;
  Wait found = __atomic_load_n(&wait, __ATOMIC_RELAXED);
  if (found == NULL) {
    // Defined by an object loaded later, not by this one, which hides the name.
    found = (Wait)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
    if (found != NULL) __atomic_store_n(&wait, found, __ATOMIC_RELAXED);
  }
  if (found != NULL) return found(condition, mutex, clock, until);
  const long long second = 1000000000;
  struct timespec now;
  clock_gettime(clock, &now);
  long long left = (until->tv_sec - now.tv_sec) * second +
                   (until->tv_nsec - now.tv_nsec);
  if (left <= 0) return ETIMEDOUT;
  if (left > second) left = second;
  clock_gettime(CLOCK_REALTIME, &now);
  left += now.tv_nsec;
  now.tv_sec += left / second;
  now.tv_nsec = left % second;
  return pthread_cond_timedwait(condition, mutex, &now);
}
