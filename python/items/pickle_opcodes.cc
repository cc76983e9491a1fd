#include "items/pickle_opcodes.h"

#include <cstring>

namespace haulway::python {

namespace {

enum Shape : uint8_t {
  kUnknown,
  kNothing,
  kFixed1,
  kFixed2,
  kFixed4,
  kFixed8,
  kCounted1,  // A length of 1, 4 or 8 bytes, then that many bytes.
  kCounted4,
  kCounted8,
  kTwoLines,
  kLine,
};

// Returns what follows each opcode: CPython Lib/pickletools.py
Shape ShapeOf(uint8_t opcode) {
  switch (opcode) {
    case 'K':   // BININT1
    case 'h':   // BINGET
    case 'q':   // BINPUT
    case 0x80:  // PROTO
    case 0x82:  // EXT1
      return kFixed1;
    case 'M':   // BININT2
    case 0x83:  // EXT2
      return kFixed2;
    case 'J':   // BININT
    case 'j':   // LONG_BINGET
    case 'r':   // LONG_BINPUT
    case 0x84:  // EXT4
      return kFixed4;
    case 'G':   // BINFLOAT
    case 0x95:  // FRAME; its content is walked
      return kFixed8;
    case 'C':   // SHORT_BINBYTES
    case 'U':   // SHORT_BINSTRING
    case 0x8a:  // LONG1
    case 0x8c:  // SHORT_BINUNICODE
      return kCounted1;
    case 'B':   // BINBYTES
    case 'T':   // BINSTRING
    case 'X':   // BINUNICODE
    case 0x8b:  // LONG4
      return kCounted4;
    case 0x8d:  // BINUNICODE8
    case 0x8e:  // BINBYTES8
    case 0x96:  // BYTEARRAY8
      return kCounted8;
    case 'c':  // GLOBAL
    case 'i':  // INST
      return kTwoLines;
    case 'F':  // FLOAT
    case 'I':  // INT
    case 'L':  // LONG
    case 'P':  // PERSID
    case 'S':  // STRING
    case 'V':  // UNICODE
    case 'g':  // GET
    case 'p':  // PUT
      return kLine;
    case '(':   // MARK
    case '.':   // STOP
    case '0':   // POP
    case '1':   // POP_MARK
    case '2':   // DUP
    case 'N':   // NONE
    case 'Q':   // BINPERSID
    case 'R':   // REDUCE
    case 'a':   // APPEND
    case 'b':   // BUILD
    case 'd':   // DICT
    case 'e':   // APPENDS
    case 'l':   // LIST
    case 'o':   // OBJ
    case 's':   // SETITEM
    case 't':   // TUPLE
    case 'u':   // SETITEMS
    case ')':   // EMPTY_TUPLE
    case ']':   // EMPTY_LIST
    case '}':   // EMPTY_DICT
    case 0x81:  // NEWOBJ
    case 0x85:  // TUPLE1
    case 0x86:  // TUPLE2
    case 0x87:  // TUPLE3
    case 0x88:  // NEWTRUE
    case 0x89:  // NEWFALSE
    case 0x8f:  // EMPTY_SET
    case 0x90:  // ADDITEMS
    case 0x91:  // FROZENSET
    case 0x92:  // NEWOBJ_EX
    case 0x93:  // STACK_GLOBAL
    case 0x94:  // MEMOIZE
    case 0x97:  // NEXT_BUFFER
    case 0x98:  // READONLY_BUFFER
      return kNothing;
    default:
      return kUnknown;
  }
}

}  // namespace

bool PickleWalker::Next() {
  start_ = end_;
  payload_ = {};
  if (!ok_ || start_ == stream_.size()) return false;
  const auto opcode = static_cast<uint8_t>(stream_[start_]);
  size_t at = start_ + 1;
  const auto skip = [&](uint64_t length) {
    if (length > stream_.size() - at) {
      ok_ = false;
      return;
    }
    at += static_cast<size_t>(length);
  };
  const auto counted = [&](size_t width) {
    uint64_t length = 0;
    const size_t field = at;
    skip(width);
    if (!ok_) return;
    std::memcpy(&length, &stream_[field], width);
    const size_t from = at;
    skip(length);
    if (ok_) payload_ = stream_.subspan(from, at - from);
  };
  const auto line = [&] {
    while (ok_ && at < stream_.size() && stream_[at] != std::byte{'\n'}) ++at;
    skip(1);
  };
  switch (ShapeOf(opcode)) {
    case kNothing:
      break;
    case kFixed1:
      skip(1);
      break;
    case kFixed2:
      skip(2);
      break;
    case kFixed4:
      skip(4);
      break;
    case kFixed8:
      skip(8);
      break;
    case kCounted1:
      counted(1);
      break;
    case kCounted4:
      counted(4);
      break;
    case kCounted8:
      counted(8);
      break;
    case kTwoLines:
      line();
      line();
      break;
    case kLine:
      line();
      break;
    case kUnknown:
      ok_ = false;
      break;
  }
  end_ = at;
  return ok_;
}

bool PickleWalker::is_bytes() const {
  return opcode() == kBinBytes || opcode() == kBinBytes8 ||
         opcode() == kByteArray8;
}

}  // namespace haulway::python
