#include "io/name_watch.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/posix.h"

namespace haulway {

namespace {

// Opening, unlike stat(2), asks a network file system again.
bool LookAt(const std::string& path, struct stat* facts) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  return fd.get() >= 0 && ::fstat(fd.get(), facts) == 0;
}

}  // namespace

NameWatch::NameWatch(const ByteSource& source) : path_(source.name()) {
  // A snapshot does not say in which file it lies.
  const auto place = source.size() == 0 ? std::nullopt : source.InFile(0, 1);
  is_local_ = place.has_value()
                  ? ::fstat(place->fd, &first_) == 0
                  : source.Look({}).local_file && LookAt(path_, &first_);
}

bool NameWatch::IsSame() const {
  if (!is_local_) return true;
  struct stat now;
  // The time of a file's last change is also that of its last renaming.
  return LookAt(path_, &now) && now.st_dev == first_.st_dev &&
         now.st_ino == first_.st_ino &&
         now.st_ctim.tv_sec == first_.st_ctim.tv_sec &&
         now.st_ctim.tv_nsec == first_.st_ctim.tv_nsec;
}

}  // namespace haulway
