#include "runs/local_names.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "io/file_of_set.h"
#include "runs/run_layout.h"
#include "runs/run_manifest.h"

namespace haulway {

namespace {

constexpr std::string_view kStep = ".step-";
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kTrash = ".trash-";
constexpr std::string_view kLock = ".lock";
constexpr int kMostTries = 100;

std::string LockOf(const std::string& path) {
  return path + std::string(kLock);
}

Status Failed(int error, std::string_view what, const std::string& path) {
  return Status::FromErrno(error, what).Of(path);
}

// Returns whether renameat2(2) failed because it has no such flag here.
bool HasNoFlags(int error) { return error == EINVAL || error == ENOSYS; }

// Returns the step that a hidden name is of; nullopt for other names.
std::optional<uint64_t> StepOfTemporary(std::string_view name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  name.remove_prefix(kStep.size());
  const size_t end = name.find(kTemporary);
  if (end == name.npos) return std::nullopt;
  return WholeNumberOf(name.substr(0, end));
}

// Removes the hidden folder of a step, and its lock, unless a process holds
// that. `path`: of either.
void RemoveUnlocked(std::string path) {
  if (path.ends_with(kLock)) path.resize(path.size() - kLock.size());
  const UniqueFd fd(
      ::open(LockOf(path).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (fd.get() < 0 ? errno != ENOENT
                   : ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return;
  }
  if (RemoveTree(path).ok()) RemoveLock(path);
}

}  // namespace

std::string NewId() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

Result<UniqueFd> MakeTemporary(const std::string& root, uint64_t step,
                               std::string* path) {
  for (int i = 0; i < kMostTries; ++i) {
    *path = fmt::format("{}{}{}{}{}", root, kStep, step, kTemporary, NewId());
    const std::string lock = LockOf(*path);
    UniqueFd fd(
        ::open(lock.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd.get() < 0) {
      if (errno == EEXIST) continue;
      return Failed(errno, "cannot make the folder of the step", *path);
    }
    // A file system without locks has no other processes that sweep either.
    (void)::flock(fd.get(), LOCK_EX | LOCK_NB);
    // A sweep may have taken it for a leftover before it was locked.
    if (!LeadsTo(lock, fd.get())) continue;
    if (::mkdir(path->c_str(), 0777) == 0) return fd;
    const int error = errno;
    (void)::unlink(lock.c_str());
    return Failed(error, "cannot make the folder of the step", *path);
  }
  return Status(Code::kUnavailable,
                "the folder of the step is removed again and again")
      .Of(*path);
}

Status CheckIsOurs(const std::string& path) {
  const std::string manifest = fmt::format("{}/{}", path, kRunManifestName);
  struct stat facts;
  const auto others = [&](std::string_view what) {
    return Status(Code::kInvalidArgument,
                  fmt::format("cannot save the step: {} is there, so another "
                              "program made it",
                              what))
        .Of(path);
  };
  for (int i = 0; i < kMostTries; ++i) {
    if (::lstat(path.c_str(), &facts) != 0) {
      if (errno == ENOENT) return Status();
      return Failed(errno, "cannot save the step", path);
    }
    if (S_ISLNK(facts.st_mode)) return others("a symbolic link");
    if (!S_ISDIR(facts.st_mode)) return others("a file");
    if (::lstat(manifest.c_str(), &facts) == 0) return Status();
    if (errno != ENOENT) return Failed(errno, "cannot save the step", manifest);
    // Unless it was removed since it was found.
    if (::lstat(path.c_str(), &facts) == 0) break;
  }
  return others(fmt::format("a folder without {}", kRunManifestName));
}

Status TakeName(const std::string& root, const std::string& from,
                const std::string& to, std::string* old) {
  old->clear();
  const std::string trash = fmt::format("{}{}{}", root, kTrash, NewId());
  for (int i = 0; i < kMostTries; ++i) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(),
                    RENAME_NOREPLACE) == 0) {
      return Status();
    }
    if (errno != EEXIST && !HasNoFlags(errno)) {
      return Failed(errno, "cannot name the step", to);
    }
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(),
                    RENAME_EXCHANGE) == 0) {
      // The old step has the hidden name of the new one, and no lock.
      *old = from;
      if (::rename(from.c_str(), trash.c_str()) == 0) *old = trash;
      return Status();
    }
    if (errno == ENOENT) continue;  // It lost its name meanwhile.
    if (!HasNoFlags(errno)) return Failed(errno, "cannot name the step", to);
    if (::rename(to.c_str(), trash.c_str()) == 0) {
      *old = trash;
    } else if (errno != ENOENT) {
      return Failed(errno, "cannot move the old step away", to);
    }
    if (::rename(from.c_str(), to.c_str()) == 0) return Status();
    if (errno != ENOTEMPTY && errno != EEXIST) {
      return Failed(errno, "cannot name the step", to);
    }
  }
  return Status(Code::kUnavailable,
                "the step is saved by others again and again")
      .Of(to);
}

Result<bool> MoveAway(const std::string& root, const std::string& path) {
  const std::string trash = fmt::format("{}{}{}", root, kTrash, NewId());
  if (::rename(path.c_str(), trash.c_str()) != 0) {
    if (errno == ENOENT) return false;
    return Failed(errno, "cannot remove the checkpoint", path);
  }
  HAULWAY_TRY(RemoveTree(trash));
  return true;
}

Status RemoveTree(const std::string& path) {
  // Another process may remove the same tree.
  std::error_code error;
  for (int i = 0; i < kMostTries; ++i) {
    std::filesystem::remove_all(path, error);
    if (!error) return Status();
    if (error != std::errc::no_such_file_or_directory &&
        error != std::errc::directory_not_empty) {
      break;
    }
  }
  return Failed(error.value(), "cannot remove", path);
}

void RemoveLock(const std::string& path) {
  (void)::unlink(LockOf(path).c_str());
}

Status SweepSteps(const std::string& root, std::optional<uint64_t> newest) {
  std::error_code error;
  std::filesystem::directory_iterator files(root, error);
  for (; !error && files != std::filesystem::directory_iterator();
       files.increment(error)) {
    const std::string name = files->path().filename().string();
    const auto step = StepOfTemporary(name);
    if (name.starts_with(kTrash)) {
      HAULWAY_TRY(RemoveTree(root + name));
    } else if (step.has_value() && newest.has_value() && *step <= *newest) {
      RemoveUnlocked(root + name);
    }
  }
  if (!error) return Status();
  return Failed(error.value(), "cannot list the folder", root);
}

}  // namespace haulway
