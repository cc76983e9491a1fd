#include "dcp/dcp_files.h"

#include <fmt/format.h>

#include <utility>

#include "base/text.h"

namespace haulway::dcp {

DataFiles::DataFiles(std::shared_ptr<const ByteSource> beside,
                     std::vector<std::string_view> names)
    : beside_(std::move(beside)), names_(std::move(names)) {
  open_.resize(names_.size());
}

uint32_t DataFiles::Add(std::string_view name,
                        std::shared_ptr<const ByteSource> file) {
  const std::lock_guard lock(mutex_);
  names_.push_back(name);
  open_.push_back(std::move(file));
  return static_cast<uint32_t>(names_.size() - 1);
}

Result<std::shared_ptr<const ByteSource>> DataFiles::Open(uint32_t row) const {
  {
    const std::lock_guard lock(mutex_);
    if (open_[row] != nullptr) return open_[row];
  }
  // Two threads may open the same file; the first one's source is kept.
  auto opened = beside_->OpenNeighbour(names_[row]);
  if (!opened.ok()) {
    return std::move(opened).status().In(
        fmt::format("data file {}", Quote(names_[row])));
  }
  const std::lock_guard lock(mutex_);
  if (open_[row] == nullptr) open_[row] = *std::move(opened);
  return open_[row];
}

bool IsServer(const ByteSource& source) { return source.Look({}).is_server(); }

}  // namespace haulway::dcp
