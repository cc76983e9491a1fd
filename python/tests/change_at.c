/* Changes a file while it is read. CHANGE_FILE is a part of the names of files;
 * just before the CHANGE_AT-th call of pread() or preadv() on one of them, from
 * 1 on, and again after that call if CHANGE_AFTER is set, every byte of the file
 * from CHANGE_FROM on is inverted. CHANGE_LOG receives the number of calls. For
 * LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_int calls;

static ssize_t real_pread(int fd, void* to, size_t bytes, off64_t at) {
  return ((ssize_t(*)(int, void*, size_t, off64_t))dlsym(RTLD_NEXT, "pread64"))(
      fd, to, bytes, at);
}

static int is_ours(int fd, char* name, size_t size) {
  const char* part = getenv("CHANGE_FILE");
  char link[64];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  ssize_t length = part ? readlink(link, name, size - 1) : -1;
  if (length < 0) return 0;
  name[length] = 0;
  return strstr(name, part) != NULL;
}

static void invert(const char* name) {
  int fd = open(name, O_RDWR | O_CLOEXEC);
  struct stat facts;
  if (fd < 0 || fstat(fd, &facts) != 0) abort();
  char* bytes = malloc((size_t)facts.st_size + 1);
  if (!bytes || real_pread(fd, bytes, (size_t)facts.st_size, 0) < 0) abort();
  const char* from = getenv("CHANGE_FROM");
  for (off_t i = from ? atoll(from) : 0; i < facts.st_size; ++i) {
    bytes[i] = (char)~bytes[i];
  }
  if (pwrite(fd, bytes, (size_t)facts.st_size, 0) != facts.st_size) abort();
  free(bytes);
  close(fd);
}

/* Returns whether the call is the one at which the file changes. */
static int begin(int fd, char* name, size_t size) {
  if (!is_ours(fd, name, size)) return 0;
  int number = atomic_fetch_add(&calls, 1) + 1;
  const char* log = getenv("CHANGE_LOG");
  if (log) {
    FILE* file = fopen(log, "w");
    if (!file) abort();
    fprintf(file, "%d", number);
    fclose(file);
  }
  const char* at = getenv("CHANGE_AT");
  if (!at || number != atoi(at)) return 0;
  invert(name);
  return 1;
}

static void end(int changed, const char* name) {
  if (changed && getenv("CHANGE_AFTER")) invert(name);
}

ssize_t pread64(int fd, void* to, size_t bytes, off64_t at) {
  char name[4096];
  int changed = begin(fd, name, sizeof(name));
  ssize_t got = real_pread(fd, to, bytes, at);
  end(changed, name);
  return got;
}

ssize_t pread(int fd, void* to, size_t bytes, off_t at) {
  return pread64(fd, to, bytes, at);
}

ssize_t preadv64(int fd, const struct iovec* vectors, int count, off64_t at) {
  char name[4096];
  int changed = begin(fd, name, sizeof(name));
  ssize_t got = ((ssize_t(*)(int, const struct iovec*, int, off64_t))dlsym(
      RTLD_NEXT, "preadv64"))(fd, vectors, count, at);
  end(changed, name);
  return got;
}

ssize_t preadv(int fd, const struct iovec* vectors, int count, off_t at) {
  return preadv64(fd, vectors, count, at);
}
