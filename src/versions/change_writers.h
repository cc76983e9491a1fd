// Writers of changes that threads share.

#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "delta/change_writer.h"
#include "haulway/status.h"

namespace haulway {

// ChangeWriters lends a ChangeWriter to each thread that asks; those that came
// back are lent again. Threads: any.
class ChangeWriters {
 public:
  // Fails as ChangeWriter::Make() does.
  Result<std::unique_ptr<delta::ChangeWriter>> Take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto writer = std::move(idle_.back());
        idle_.pop_back();
        return writer;
      }
    }
    HAULWAY_ASSIGN(delta::ChangeWriter writer, delta::ChangeWriter::Make());
    return std::make_unique<delta::ChangeWriter>(std::move(writer));
  }
  void Return(std::unique_ptr<delta::ChangeWriter> writer) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(writer));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<delta::ChangeWriter>> idle_
      HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace haulway
