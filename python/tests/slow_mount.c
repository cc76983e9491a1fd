/* A file system in user space (FUSE) that shows a folder, slowly:
 *
 *   slow_mount FOLDER LOG MOUNT [libfuse's options]
 *
 * Each open and each read waits a millisecond, as a server on a network does,
 * and adds a line to LOG: "open PATH", or "read PATH OFFSET SIZE". A read has
 * 128 KiB at most. */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char* folder;
static int log_file;

static void wait_and_say(const char* line, int length) {
  const struct timespec wait = {0, 1000000};
  if (write(log_file, line, (size_t)length) != length) _exit(1);
  nanosleep(&wait, NULL);
}

static int result(int value) { return value < 0 ? -errno : value; }

static const char* in_folder(const char* path, char* out, size_t size) {
  snprintf(out, size, "%s%s", folder, path);
  return out;
}

static void* begin(struct fuse_conn_info* connection,
                   struct fuse_config* config) {
  connection->max_read = 128 << 10;
  config->kernel_cache = 0;
  return NULL;
}

static int look(const char* path, struct stat* facts,
                struct fuse_file_info* file) {
  char at[4096];
  (void)file;
  return result(lstat(in_folder(path, at, sizeof(at)), facts));
}

static int list(const char* path, void* names, fuse_fill_dir_t fill, off_t at,
                struct fuse_file_info* file, enum fuse_readdir_flags flags) {
  char where[4096];
  DIR* const open = opendir(in_folder(path, where, sizeof(where)));
  (void)at, (void)file, (void)flags;
  if (!open) return -errno;
  for (struct dirent* one; (one = readdir(open));) {
    fill(names, one->d_name, NULL, 0, 0);
  }
  return result(closedir(open));
}

static int open_file(const char* path, struct fuse_file_info* file) {
  char at[4096], line[4200];
  wait_and_say(line, snprintf(line, sizeof(line), "open %s\n", path));
  const int fd = open(in_folder(path, at, sizeof(at)), O_RDONLY);
  file->fh = (uint64_t)fd;
  return fd < 0 ? -errno : 0;
}

static int read_file(const char* path, char* out, size_t size, off_t offset,
                     struct fuse_file_info* file) {
  char line[4200];
  wait_and_say(line, snprintf(line, sizeof(line), "read %s %lld %zu\n", path,
                              (long long)offset, size));
  return result((int)pread((int)file->fh, out, size, offset));
}

static int close_file(const char* path, struct fuse_file_info* file) {
  (void)path;
  return result(close((int)file->fh));
}

int main(int count, char** words) {
  static const struct fuse_operations operations = {
      .getattr = look, .readdir = list, .open = open_file, .read = read_file,
      .release = close_file, .init = begin};
  if (count < 4) return 2;
  folder = words[1];
  log_file = open(words[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  words[2] = words[0];
  return fuse_main(count - 2, words + 2, &operations, NULL);
}
