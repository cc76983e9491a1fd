#include "net/arrivals.h"

#include <utility>

namespace haulway::net {

namespace {

thread_local const ArrivalScope* current = nullptr;

}  // namespace

ArrivalScope::ArrivalScope(Function function)
    : function_(std::move(function)), outer_(current) {
  current = this;
}

ArrivalScope::~ArrivalScope() { current = outer_; }

void ArrivalScope::Tell(std::span<const std::byte> bytes) {
  if (current != nullptr) current->function_(bytes);
}

}  // namespace haulway::net
