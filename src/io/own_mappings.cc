#include "io/own_mappings.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/page_bytes.h"
#include "base/text.h"
#include "base/write_hold.h"
#include "haulway/options.h"

namespace haulway {

namespace {

struct MapsLine {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  char access[5] = {};  // As in proc(5), e.g. "rw-p".
  unsigned long long inode = 0;

  std::string name;  // The file's path; empty if the kernel knows none.

  bool is_private() const { return access[3] == 'p'; }
  bool is_writable() const { return access[1] == 'w'; }
  int protection() const {
    return (access[0] == 'r' ? PROT_READ : 0) |
           (access[1] == 'w' ? PROT_WRITE : 0) |
           (access[2] == 'x' ? PROT_EXEC : 0);
  }
};

bool Parse(const std::string& line, MapsLine* mapping) {
  unsigned long long begin = 0;
  unsigned long long end = 0;
  int name = 0;
  if (std::sscanf(line.c_str(), "%llx-%llx %4s %*x %*x:%*x %llu %n", &begin,
                  &end, mapping->access, &mapping->inode, &name) != 4) {
    return false;
  }
  mapping->begin = begin;
  mapping->end = end;
  mapping->name = line.substr(static_cast<size_t>(name));
  return true;
}

// The device in proc(5) is not compared, because on some file systems (btrfs,
// overlayfs) it differs from stat(2).
bool IsOf(const MapsLine& mapping, const struct stat& file) {
  if (mapping.inode != file.st_ino) return false;
  struct stat named;
  // A file without this name may have been renamed or deleted.
  return ::stat(mapping.name.c_str(), &named) != 0 ||
         named.st_ino != file.st_ino || named.st_dev == file.st_dev;
}

// Returns the mappings of the file. At worst, a mapping of a deleted file with
// the same number is among them, and is copied needlessly.
std::vector<MapsLine> MappingsOf(const struct stat& file) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  std::vector<MapsLine> found;
  while (std::getline(maps, line)) {
    MapsLine mapping;
    if (Parse(line, &mapping) && IsOf(mapping, file)) {
      found.push_back(mapping);
    }
  }
  return found;
}

// Reads memory of this process like another process would: a page that would
// raise SIGBUS because the file was truncated gives EFAULT instead. Returns an
// errno.
int ReadMemory(uintptr_t from, std::span<std::byte> out) {
  const iovec to = {out.data(), out.size()};
  const iovec what = {reinterpret_cast<void*>(from), out.size()};
  const ssize_t count =
      ::process_vm_readv(::getpid(), &to, 1, &what, 1, /*flags=*/0);
  if (count < 0) return errno;
  return count == static_cast<ssize_t>(out.size()) ? 0 : EFAULT;
}

// Copies memory. Pages that the file no longer has stay zero. Returns an errno.
int CopyMemory(uintptr_t from, std::span<std::byte> out) {
  for (size_t done = 0; done < out.size();) {
    const size_t step = std::min<size_t>(out.size() - done, kMiB);
    int error = ReadMemory(from + done, out.subspan(done, step));
    const size_t end = done + step;
    for (; error == EFAULT && done < end; done += kPageBytes) {
      const auto page =
          out.subspan(done, std::min<size_t>(kPageBytes, end - done));
      if (const int e = ReadMemory(from + done, page); e != 0) error = e;
    }
    if (error != 0 && error != EFAULT) return error;
    done = end;
  }
  return 0;
}

// Replaces the mapping with a copy of its content. Threads that write to it
// wait meanwhile.
Status Detach(const MapsLine& mapping, const std::string& path) {
  const size_t bytes = mapping.end - mapping.begin;
  void* copy = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) {
    return Status(Code::kLimit,
                  fmt::format("no memory to keep what was loaded from {} while "
                              "it is overwritten",
                              QuotePath(path)));
  }
  std::optional<WriteHold> hold;
  if (mapping.is_writable()) {
    hold.emplace(std::span(reinterpret_cast<std::byte*>(mapping.begin), bytes));
    if (!hold->status().ok()) {
      const Status status = hold->status();
      hold->Release();
      ::munmap(copy, bytes);
      return status;
    }
  }
  int error = CopyMemory(mapping.begin, {static_cast<std::byte*>(copy), bytes});
  if (error == 0 &&
      (::mprotect(copy, bytes, mapping.protection()) != 0 ||
       ::mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                reinterpret_cast<void*>(mapping.begin)) == MAP_FAILED)) {
    error = errno;
  }
  if (error != 0) {
    if (hold.has_value()) hold->Release();
    ::munmap(copy, bytes);
    return Status::FromErrno(
        error,
        fmt::format("cannot keep what was loaded from {}", QuotePath(path)));
  }
  return Status();
}

}  // namespace

bool HasMappings(const struct stat& file) { return !MappingsOf(file).empty(); }

Status DetachMappings(const struct stat& file, const std::string& path) {
  const std::vector<MapsLine> mappings = MappingsOf(file);
  if (mappings.empty()) return Status();
  if (!std::ranges::all_of(mappings, &MapsLine::is_private)) {
    return Status(
        Code::kUnsupported,
        fmt::format("{} can only be overwritten in place, which would change "
                    "memory that this process shares with it: save it under "
                    "another name",
                    QuotePath(path)));
  }
  for (const MapsLine& mapping : mappings) HAULWAY_TRY(Detach(mapping, path));
  return Status();
}

}  // namespace haulway
