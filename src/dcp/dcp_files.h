// Opens the files of a directory when they are first read.

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

// DataFiles opens files in the same folder as another file. Messages use the
// names in the metadata.
//
// Threads: any number at once.
class DataFiles {
 public:
  DataFiles(std::shared_ptr<const ByteSource> beside,
            std::vector<std::string_view> names);

  // Adds a file that is already open. Returns its row.
  uint32_t Add(std::string_view name, std::shared_ptr<const ByteSource> file);

  // Opens the file in a row. Fails as opening does, with the file's name.
  Result<std::shared_ptr<const ByteSource>> Open(uint32_t row) const;
  std::string_view name(uint32_t row) const { return names_[row]; }
  size_t count() const { return names_.size(); }
  const ByteSource& beside() const { return *beside_; }

 private:
  const std::shared_ptr<const ByteSource> beside_;
  std::vector<std::string_view> names_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const ByteSource>> open_
      HAULWAY_GUARDED_BY(mutex_);  // Null until the file is opened.
};

// Returns whether every request is a round trip, so that files should not be
// opened before they are needed.
bool IsServer(const ByteSource& source);

}  // namespace haulway::dcp
