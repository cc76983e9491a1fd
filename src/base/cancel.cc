#include "haulway/options.h"

namespace haulway {

namespace {

thread_local const CancelScope* current = nullptr;

}  // namespace

CancelScope::CancelScope(const std::atomic<bool>* flag)
    : flag_(flag), outer_(current), before_(current) {
  current = this;
}

CancelScope::CancelScope(const CancelScope* others)
    : flag_(nullptr), outer_(others), before_(current) {
  current = this;
}

CancelScope::~CancelScope() { current = before_; }

const CancelScope* CancelScope::Current() { return current; }

bool CancelScope::IsCancelled() {
  for (const CancelScope* scope = current; scope != nullptr;
       scope = scope->outer_) {
    if (scope->flag_ != nullptr && scope->flag_->load()) return true;
  }
  return false;
}

}  // namespace haulway
