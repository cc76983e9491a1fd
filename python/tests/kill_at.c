/* Kills the process before its n-th call that changes files. kill_at() or the
 * environment's KILL_AT sets n. KILL_WITH is another signal than SIGKILL, after
 * which the call is made; with ERROR_AT the call fails instead, with this errno.
 * kill_with() and fail_with() set these, too.
 * With POWER_CUT the machine is as if it lost its power then: files that were
 * not synced since they were written are empty, and names of files in folders
 * that were not synced since are gone. CALLS_TO is a file that gets the number
 * of calls at the end. For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long left = -1, made = 0;
static int error, killing = SIGKILL, cuts_power;

void kill_at(long n) { left = n; }
void kill_with(int number) { killing = number; }
void fail_with(int number) { error = number; }
long calls_left(void) { return left; }

__attribute__((constructor)) static void begin(void) {
  const char* named = getenv("KILL_AT");
  if (named) left = atol(named);
  const char* with = getenv("KILL_WITH");
  if (with) killing = atoi(with);
  const char* failing = getenv("ERROR_AT");
  if (failing) error = atoi(failing);
  cuts_power = getenv("POWER_CUT") != NULL;
}

/* A file with bytes, or a folder with a name, that a loss of power takes. */
static struct {
  int fd; /* 0: none. */
  dev_t device;
  ino_t inode;
  char name[256]; /* "" for bytes. */
} unsynced[1024];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void note(int fd, const char* name) {
  struct stat facts;
  if (!cuts_power || left < 0 || fstat(fd, &facts) != 0) return;
  pthread_mutex_lock(&lock);
  size_t i = 0, n = sizeof(unsynced) / sizeof(unsynced[0]);
  while (i < n && unsynced[i].fd &&
         (unsynced[i].inode != facts.st_ino || *name || *unsynced[i].name))
    ++i;
  if (i == n) abort();
  if (!unsynced[i].fd) {
    unsynced[i].fd = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    unsynced[i].device = facts.st_dev;
    unsynced[i].inode = facts.st_ino;
    strncpy(unsynced[i].name, name, sizeof(unsynced[i].name) - 1);
  }
  pthread_mutex_unlock(&lock);
}

static void note_synced(int fd) {
  struct stat facts;
  if (!cuts_power || fstat(fd, &facts) != 0) return;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < sizeof(unsynced) / sizeof(unsynced[0]); ++i) {
    if (unsynced[i].fd && unsynced[i].inode == facts.st_ino &&
        unsynced[i].device == facts.st_dev) {
      close(unsynced[i].fd);
      memset(&unsynced[i], 0, sizeof(unsynced[i]));
    }
  }
  pthread_mutex_unlock(&lock);
}

/* Notes the new name of a file; that of a folder is undone by an earlier kill. */
static void note_name(int folder, const char* path) {
  struct stat facts;
  if (!cuts_power || fstatat(folder, path, &facts, AT_SYMLINK_NOFOLLOW) != 0 ||
      !S_ISREG(facts.st_mode))
    return;
  char parent[4096];
  const char* slash = strrchr(path, '/');
  snprintf(parent, sizeof(parent), "%.*s",
           slash ? (int)(slash - path) : 1, slash ? path : ".");
  int fd = openat(folder, parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  note(fd, slash ? slash + 1 : path);
  close(fd);
}

static void cut_power(void) {
  int (*cut)(int, off_t) = (int (*)(int, off_t))dlsym(RTLD_NEXT, "ftruncate");
  int (*take)(int, const char*, int) =
      (int (*)(int, const char*, int))dlsym(RTLD_NEXT, "unlinkat");
  for (size_t i = 0; i < sizeof(unsynced) / sizeof(unsynced[0]); ++i) {
    if (!unsynced[i].fd) continue;
    if (*unsynced[i].name) {
      take(unsynced[i].fd, unsynced[i].name, 0);
    } else {
      cut(unsynced[i].fd, 0);
    }
  }
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
  if (cuts_power) cut_power();
  if (!error) kill(getpid(), killing);
  errno = error;
  return error != 0;
}

#define NOTED(type, name, parameters, arguments, before, after)            \
  type name parameters {                                                   \
    static type(*next) parameters;                                         \
    if (!next) next = (type(*) parameters)dlsym(RTLD_NEXT, #name);         \
    if (count()) return -1;                                                \
    before;                                                                \
    type result = next arguments;                                          \
    if (result >= 0) {                                                     \
      after;                                                               \
    }                                                                      \
    return result;                                                         \
  }
#define COUNTED(type, name, parameters, arguments) \
  NOTED(type, name, parameters, arguments, , )
#define WRITING(type, name, parameters, arguments, fd) \
  NOTED(type, name, parameters, arguments, note(fd, ""), )
#define SYNCING(name) NOTED(int, name, (int fd), (fd), , note_synced(fd))
#define NAMING(name, parameters, arguments, folder, path) \
  NOTED(int, name, parameters, arguments, , note_name(folder, path))

WRITING(ssize_t, pwrite64, (int fd, const void* b, size_t n, off_t at),
        (fd, b, n, at), fd)
WRITING(ssize_t, pwrite, (int fd, const void* b, size_t n, off_t at),
        (fd, b, n, at), fd)
WRITING(ssize_t, pwritev64, (int fd, const struct iovec* v, int n, off_t at),
        (fd, v, n, at), fd)
WRITING(ssize_t, pwritev, (int fd, const struct iovec* v, int n, off_t at),
        (fd, v, n, at), fd)
SYNCING(fsync)
SYNCING(fdatasync)
WRITING(int, ftruncate64, (int fd, off_t n), (fd, n), fd)
WRITING(int, ftruncate, (int fd, off_t n), (fd, n), fd)
NAMING(linkat, (int a, const char* b, int c, const char* d, int e),
       (a, b, c, d, e), c, d)
NAMING(rename, (const char* a, const char* b), (a, b), AT_FDCWD, b)
NAMING(renameat, (int a, const char* b, int c, const char* d), (a, b, c, d),
       c, d)
NAMING(renameat2, (int a, const char* b, int c, const char* d, unsigned flags),
       (a, b, c, d, flags), c, d)
WRITING(int, fallocate64, (int fd, int mode, off_t at, off_t n),
        (fd, mode, at, n), fd)
WRITING(int, fallocate, (int fd, int mode, off_t at, off_t n),
        (fd, mode, at, n), fd)
WRITING(ssize_t, copy_file_range,
        (int a, off64_t* b, int c, off64_t* d, size_t n, unsigned flags),
        (a, b, c, d, n, flags), c)
COUNTED(int, unlink, (const char* a), (a))
COUNTED(int, unlinkat, (int a, const char* b, int c), (a, b, c))
COUNTED(int, mkdir, (const char* a, mode_t b), (a, b))
