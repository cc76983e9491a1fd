#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "haulway/pickle.h"
#include "pickle/pickle_opcodes.h"
#include "pickle/pickle_python2.h"

namespace haulway {

namespace {

constexpr size_t kFirstBytes = 4096;
constexpr size_t kFirstSlots = 256;

}  // namespace

bool IsDataGlobal(std::string_view module, std::string_view name) {
  return GlobalTable().Find(module, name).allowed;
}

void PickleMemo::Grow() {
  std::vector<Slot> old(slots_.empty() ? kFirstSlots : slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.id != nullptr) slots_[Probe(slot.id)] = slot;
  }
}

PickleWriter::PickleWriter(int protocol)
    : bytes_(kFirstBytes, '\0'),
      next_(bytes_.data()),
      end_(bytes_.data() + bytes_.size()),
      protocol_(protocol) {
  assert(protocol >= kLeastProtocol && protocol <= kMostProtocol);
  Op(static_cast<char>(pickle::kProto));
  Op(static_cast<char>(protocol));
  framed_ = protocol >= 4;
  if (framed_) BeginFrame();
}

void PickleWriter::BeginFrame() {
  Room(kFrameHead);
  frame_ = size();
  next_ += kFrameHead;
}

// CPython omits the head of a frame of fewer than four bytes.
void PickleWriter::EndFrame() {
  constexpr size_t kLeastFrame = 4;
  char* head = bytes_.data() + frame_;
  const size_t length = size() - frame_ - kFrameHead;
  if (length < kLeastFrame) {
    std::memmove(head, head + kFrameHead, length);
    next_ -= kFrameHead;
    return;
  }
  *head = static_cast<char>(pickle::kFrame);
  Store64(head + 1, length);
}

void PickleWriter::Sized(char narrow, char wide, char widest,
                         std::string_view bytes) {
  BeginObject();
  const bool apart = framed_ && bytes.size() >= kFrameTarget;
  if (apart) EndFrame();
  Room(kFrameHead);
  if (narrow != 0 && bytes.size() <= UINT8_MAX) {
    *next_++ = narrow;
    *next_++ = static_cast<char>(bytes.size());
  } else if (wide != 0 && bytes.size() <= UINT32_MAX) {
    *next_ = wide;
    Store32(next_ + 1, static_cast<uint32_t>(bytes.size()));
    next_ += 5;
  } else {
    *next_ = widest;
    Store64(next_ + 1, bytes.size());
    next_ += 9;
  }
  Bytes(bytes);
  if (apart) BeginFrame();
}

void PickleWriter::Grow(size_t count) {
  const size_t used = size();
  bytes_.resize(std::max(bytes_.size() * 2, used + count));
  next_ = bytes_.data() + used;
  end_ = bytes_.data() + bytes_.size();
}

void PickleWriter::Int(int64_t value) {
  BeginObject();
  if (value < INT32_MIN || value > INT32_MAX) {
    char bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
    return BigInt({bytes, sizeof(bytes)});
  }
  Room(5);
  const auto bits = static_cast<uint32_t>(value);
  Store32(next_ + 1, bits);
  if (bits < 0x100) {
    *next_ = static_cast<char>(pickle::kBinInt1);
    next_ += 2;
  } else if (bits < 0x10000) {
    *next_ = static_cast<char>(pickle::kBinInt2);
    next_ += 3;
  } else {
    *next_ = static_cast<char>(pickle::kBinInt);
    next_ += 5;
  }
}

void PickleWriter::BigInt(std::string_view bytes) {
  // Drop last bytes that only repeat the sign.
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  while (bytes.size() > 1) {
    const uint8_t last = at(bytes.size() - 1);
    const bool negative = (at(bytes.size() - 2) & 0x80) != 0;
    if (last != (negative ? 0xFF : 0)) break;
    bytes.remove_suffix(1);
  }
  if (bytes.size() <= 8) {
    uint64_t bits =
        !bytes.empty() && (at(bytes.size() - 1) & 0x80) != 0 ? ~uint64_t{0} : 0;
    for (size_t i = bytes.size(); i-- > 0;) bits = bits << 8 | at(i);
    const auto value = static_cast<int64_t>(bits);
    if (value >= INT32_MIN && value <= INT32_MAX) return Int(value);
  }
  BeginObject();
  Room(5);
  if (bytes.size() < 256) {
    *next_++ = static_cast<char>(pickle::kLong1);
    *next_++ = static_cast<char>(bytes.size());
  } else {
    *next_++ = static_cast<char>(pickle::kLong4);
    Store32(next_, static_cast<uint32_t>(bytes.size()));
    next_ += 4;
  }
  Bytes(bytes);
}

void PickleWriter::Float(double value) {
  BeginObject();
  Room(9);
  const auto bits = std::bit_cast<uint64_t>(value);
  *next_++ = static_cast<char>(pickle::kBinFloat);
  for (int i = 56; i >= 0; i -= 8) *next_++ = static_cast<char>(bits >> i);
}

void PickleWriter::Unicode(std::string_view text) {
  const int narrow = protocol_ >= 4 ? pickle::kShortBinUnicode : 0;
  Sized(static_cast<char>(narrow), static_cast<char>(pickle::kBinUnicode),
        static_cast<char>(pickle::kBinUnicode8), text);
}

void PickleWriter::Binary(std::string_view bytes) {
  Sized(static_cast<char>(pickle::kShortBinBytes),
        static_cast<char>(pickle::kBinBytes),
        static_cast<char>(pickle::kBinBytes8), bytes);
}

void PickleWriter::ByteArray(std::string_view bytes) {
  Sized(0, 0, static_cast<char>(pickle::kByteArray8), bytes);
}

void PickleWriter::RawString(std::string_view bytes) {
  Room(5 + bytes.size());
  if (bytes.size() < 256) {
    *next_++ = static_cast<char>(pickle::kShortBinString);
    *next_++ = static_cast<char>(bytes.size());
  } else {
    *next_ = static_cast<char>(pickle::kBinString);
    Store32(next_ + 1, static_cast<uint32_t>(bytes.size()));
    next_ += 5;
  }
  Bytes(bytes);
}

void PickleWriter::Global(std::string_view module, std::string_view name) {
  if (framed_) {
    Unicode(module);
    PutUnshared();
    Unicode(name);
    PutUnshared();
    return StackGlobal();
  }
  const GlobalName old =
      protocol_ < 3 ? Python2Name(module, name) : GlobalName{module, name};
  Begin('c');
  Bytes(old.module);
  Bytes("\n");
  Bytes(old.name);
  Bytes("\n");
}

void PickleWriter::Tuple(size_t count) {
  constexpr char kOpcodes[] = {')', '\x85', '\x86', '\x87'};
  if (count == 0) BeginObject();
  Op(TupleNeedsMark(count) ? 't' : kOpcodes[count]);
}

std::string PickleWriter::Finish() {
  Op('.');
  if (framed_) EndFrame();
  bytes_.resize(size());
  next_ = end_ = nullptr;
  return std::move(bytes_);
}

}  // namespace haulway
