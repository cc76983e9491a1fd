#include "haulway/arena.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "arena/region.h"
#include "arena/writer_state.h"
#include "base/posix.h"

namespace haulway {

Arena::Arena(std::shared_ptr<arena::Region> region)
    : region_(std::move(region)) {}
Arena::~Arena() = default;

Result<std::shared_ptr<Arena>> Arena::Create(const ArenaOptions& options) {
  HAULWAY_ASSIGN(auto region, arena::Region::Create(options));
  return std::shared_ptr<Arena>(new Arena(std::move(region)));
}

Result<std::shared_ptr<Arena>> Arena::Attach(int fd) {
  HAULWAY_ASSIGN(auto region, arena::Region::Attach(UniqueFd(fd)));
  return std::shared_ptr<Arena>(new Arena(std::move(region)));
}

int Arena::fd() const { return region_->fd(); }

ArenaStats Arena::stats() const {
  return arena::MakeStats(region_->facts(), region_->header());
}

Result<std::unique_ptr<ArenaWriter>> Arena::OpenWriter() {
  region_->header().producer.store(static_cast<uint32_t>(::getpid()),
                                   std::memory_order_relaxed);
  return std::unique_ptr<ArenaWriter>(
      new ArenaWriter(std::make_unique<ArenaWriter::State>(region_)));
}

Result<std::unique_ptr<ArenaReader>> Arena::OpenReader(uint32_t consumer) {
  if (consumer >= region_->facts().consumers) {
    return Status(Code::kInvalidArgument,
                  fmt::format("consumer {} of an arena for {}", consumer,
                              region_->facts().consumers));
  }
  return std::unique_ptr<ArenaReader>(new ArenaReader(region_, consumer));
}

void Arena::Shutdown() {
  region_->header().shutdown.store(1, std::memory_order_seq_cst);
  region_->header().released.RingAlways();
}

void Arena::Wake() { region_->header().released.Ring(); }

}  // namespace haulway
