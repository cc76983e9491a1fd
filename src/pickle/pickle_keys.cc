#include "pickle/pickle_keys.h"

#include <bit>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/hash.h"

namespace haulway::pickle {

namespace {

// Converts numbers that are equal in Python to the same Value.
Value Normalize(const Value& key) {
  double real = 0;
  if (key.is(Kind::kBool)) return Value::Int(key.boolean() ? 1 : 0);
  if (key.is(Kind::kFloat)) {
    real = key.real();
  } else if (key.is(Kind::kComplex) && key.complex().imag() == 0) {
    real = key.complex().real();
  } else {
    return key;
  }
  if (real >= -0x1p63 && real < 0x1p63 && std::trunc(real) == real) {
    return Value::Int(static_cast<int64_t>(real));
  }
  return Value::Float(real);
}

bool IsTuple(const Value& value) { return value.is(Kind::kTuple); }

// Compares values other than tuples.
bool IsSameScalar(const Value& left, const Value& right, KeyBudget* budget) {
  const Value a = Normalize(left);
  const Value b = Normalize(right);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kNone:
      return true;
    case Kind::kInt:
      return a.integer() == b.integer();
    case Kind::kFloat:
      return a.real() == b.real();
    case Kind::kComplex:
      return a.complex() == b.complex();
    case Kind::kBigInt:
    case Kind::kString:
    case Kind::kRawString:
    case Kind::kBytes:
      return a.text().size() == b.text().size() &&
             (a.text().data() == b.text().data() ||
              (budget->Spend(a.text().size() / 16) && a.text() == b.text()));
    default:
      return a.identity() == b.identity();
  }
}

uint64_t HashScalar(const Value& value, uint64_t seed, KeyBudget* budget) {
  const Value key = Normalize(value);
  const uint64_t kind = static_cast<uint64_t>(key.kind()) * kMix2;
  switch (key.kind()) {
    case Kind::kNone:
      return Mix(seed ^ kind, kMix1);
    case Kind::kInt:
      return Mix(static_cast<uint64_t>(key.integer()) ^ seed, kMix1 ^ kind);
    case Kind::kFloat:
      return Mix(std::bit_cast<uint64_t>(key.real()) ^ seed, kMix1 ^ kind);
    case Kind::kComplex:
      return Mix(std::bit_cast<uint64_t>(key.complex().real()) ^ seed,
                 kMix1 ^ std::bit_cast<uint64_t>(key.complex().imag()));
    case Kind::kBigInt:
    case Kind::kString:
    case Kind::kRawString:
    case Kind::kBytes:
      if (!budget->Spend(key.text().size() / 16)) return seed;
      return HashText(key.text(), seed ^ kind);
    default:
      return Mix(reinterpret_cast<uintptr_t>(key.identity()) ^ seed, kMix1);
  }
}

bool IsPlain(Kind kind) {
  return kind < Kind::kByteArray || kind == Kind::kGlobal ||
         kind == Kind::kObject || kind == Kind::kPersistent;
}

}  // namespace

bool IsHashable(const Value& key, KeyBudget* budget) {
  if (IsPlain(key.kind())) return true;
  // A frozenset's items were checked when it was created.
  if (key.is(Kind::kFrozenSet)) return true;
  if (!IsTuple(key)) return false;
  std::vector<Value> pending = {key};
  while (!pending.empty()) {
    const Value tuple = pending.back();
    pending.pop_back();
    for (const Value& item : tuple.sequence().items()) {
      if (!budget->Spend()) return false;
      if (IsPlain(item.kind()) || item.is(Kind::kFrozenSet)) continue;
      if (!IsTuple(item)) return false;
      pending.push_back(item);
    }
  }
  return true;
}

bool IsSameKey(const Value& a, const Value& b, KeyBudget* budget) {
  if (!IsTuple(a) || !IsTuple(b)) return IsSameScalar(a, b, budget);
  std::vector<std::pair<Value, Value>> pending = {{a, b}};
  while (!pending.empty()) {
    const auto [left, right] = pending.back();
    pending.pop_back();
    if (left.identity() == right.identity()) continue;
    const auto x = left.sequence().items();
    const auto y = right.sequence().items();
    if (x.size() != y.size()) return false;
    for (size_t i = 0; i < x.size(); ++i) {
      if (!budget->Spend()) return false;
      if (IsTuple(x[i]) && IsTuple(y[i])) {
        pending.emplace_back(x[i], y[i]);
      } else if (!IsSameScalar(x[i], y[i], budget)) {
        return false;
      }
    }
  }
  return true;
}

uint64_t HashKey(const Value& key, uint64_t seed, KeyBudget* budget) {
  if (!IsTuple(key)) return HashScalar(key, seed, budget);
  uint64_t hash = seed;
  std::vector<Value> pending = {key};
  while (!pending.empty()) {
    const Value tuple = pending.back();
    pending.pop_back();
    hash = Mix(hash ^ tuple.sequence().size, kMix2);
    for (const Value& item : tuple.sequence().items()) {
      if (!budget->Spend()) return hash;
      if (IsTuple(item)) {
        pending.push_back(item);
      } else {
        hash = Mix(hash ^ HashScalar(item, seed, budget), kMix1);
      }
    }
  }
  return hash;
}

void KeyTable::Reset(size_t count) {
  const size_t slots = std::bit_ceil(count * 2 + 16);
  slots_.assign(slots, 0);
  mask_ = slots - 1;
  count_ = 0;
}

uint32_t KeyTable::Add(const Value& key, uint32_t place, const Value* first,
                       size_t stride, uint64_t seed, KeyBudget* budget) {
  if ((count_ + 1) * 2 > slots_.size()) Grow();
  // The upper half of the hash determines the slot, and is stored for
  // comparisons.
  const uint64_t hash = HashKey(key, seed, budget) >> 32;
  const auto* keys = reinterpret_cast<const std::byte*>(first);
  size_t at = hash & mask_;
  for (; slots_[at] != 0; at = (at + 1) & mask_) {
    if (slots_[at] >> 32 != hash) continue;
    const uint32_t found = static_cast<uint32_t>(slots_[at]) - 1;
    const auto* other = reinterpret_cast<const Value*>(keys + found * stride);
    if (IsSameKey(key, *other, budget)) return found;
  }
  slots_[at] = hash << 32 | (place + 1);
  ++count_;
  return kNew;
}

void KeyTable::Grow() {
  std::vector<uint64_t> old(slots_.empty() ? 16 : slots_.size() * 2, 0);
  old.swap(slots_);
  mask_ = slots_.size() - 1;
  for (const uint64_t slot : old) {
    if (slot == 0) continue;
    size_t at = (slot >> 32) & mask_;
    while (slots_[at] != 0) at = (at + 1) & mask_;
    slots_[at] = slot;
  }
}

}  // namespace haulway::pickle
