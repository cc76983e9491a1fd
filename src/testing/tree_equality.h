// Compares two trees, including shared references and cycles.

#pragma once

#include <bit>
#include <unordered_map>

#include "haulway/tree.h"

namespace haulway::test {

// A TreeComparer returns whether two trees load as the same object: equal
// values, equal names, and the same containers shared.
class TreeComparer {
 public:
  bool Same(const Value& a, const Value& b) {
    if (a.kind() != b.kind()) return false;
    switch (a.kind()) {
      case Kind::kNone:
        return true;
      case Kind::kBool:
      case Kind::kInt:
        return a.integer() == b.integer();
      case Kind::kFloat:
        return SameBits(a.real(), b.real());
      case Kind::kComplex:
        return SameBits(a.complex().real(), b.complex().real()) &&
               SameBits(a.complex().imag(), b.complex().imag());
      case Kind::kBigInt:
      case Kind::kString:
      case Kind::kRawString:
      case Kind::kBytes:
      case Kind::kByteArray:
        return a.text() == b.text();
      case Kind::kGlobal:
        return a.global().module == b.global().module &&
               a.global().name == b.global().name &&
               a.global().id == b.global().id;
      case Kind::kPersistent:
        return Same(a.persistent_id(), b.persistent_id());
      default:
        break;
    }
    if (a.is(Kind::kTuple) && a.sequence().size == 0) {
      return b.sequence().size == 0;
    }
    const auto [left, new_left] = left_.emplace(a.identity(), b.identity());
    const auto [right, new_right] = right_.emplace(b.identity(), a.identity());
    if (!new_left || !new_right) {
      return left->second == b.identity() && right->second == a.identity();
    }
    if (a.is_sequence()) return Same(a.sequence(), b.sequence());
    if (a.is_mapping()) return Same(a.mapping(), b.mapping());
    return Same(a.object(), b.object());
  }

 private:
  // Compares bits, so that a NaN equals itself.
  static bool SameBits(double a, double b) {
    return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
  }
  bool Same(const Sequence& a, const Sequence& b) {
    if (a.size != b.size) return false;
    for (uint32_t i = 0; i < a.size; ++i) {
      if (!Same(a.data[i], b.data[i])) return false;
    }
    return true;
  }
  bool Same(const Mapping& a, const Mapping& b) {
    if (a.size != b.size) return false;
    for (uint32_t i = 0; i < a.size; ++i) {
      if (!Same(a.data[i].key, b.data[i].key)) return false;
      if (!Same(a.data[i].value, b.data[i].value)) return false;
    }
    return Same(a.state, b.state);
  }
  bool Same(const Object& a, const Object& b) {
    if (a.is_new != b.is_new || !Same(a.called, b.called) ||
        !Same(a.args, b.args) || !Same(a.state, b.state)) {
      return false;
    }
    const ObjectExtras none;
    const ObjectExtras& left = a.extras == nullptr ? none : *a.extras;
    const ObjectExtras& right = b.extras == nullptr ? none : *b.extras;
    return Same(left.kwargs, right.kwargs) &&
           Same(left.appended, right.appended) && Same(left.items, right.items);
  }

  std::unordered_map<const void*, const void*> left_;
  std::unordered_map<const void*, const void*> right_;
};

}  // namespace haulway::test
