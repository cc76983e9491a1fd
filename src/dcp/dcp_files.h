// The files of a directory, opened when they are first read.

#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::dcp {

// DataFiles opens files beside another. Messages name them as the metadata
// does.
//
// Threads: any number at once.
class DataFiles {
 public:
  DataFiles(std::shared_ptr<const ByteSource> beside,
            std::vector<std::string_view> names);

  // Adds a file that is open already; returns its row.
  uint32_t Add(std::string_view name, std::shared_ptr<const ByteSource> file);

  // Fails as opening does, with the file's name.
  Result<std::shared_ptr<const ByteSource>> Open(uint32_t row) const;
  std::string_view name(uint32_t row) const { return names_[row]; }
  size_t count() const { return names_.size(); }
  const ByteSource& beside() const { return *beside_; }

 private:
  const std::shared_ptr<const ByteSource> beside_;
  std::vector<std::string_view> names_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const ByteSource>> open_
      HAULWAY_GUARDED_BY(mutex_);  // Null until it is read.
};

// Whether every request is a round trip, so that files are not opened before
// they are wanted.
bool IsServer(const ByteSource& source);

}  // namespace haulway::dcp
