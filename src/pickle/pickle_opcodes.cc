#include "pickle/pickle_opcodes.h"

#include <array>
#include <string_view>

#include "haulway/pickle.h"

namespace haulway {

namespace {

using Names = std::array<std::string_view, 256>;

constexpr Names MakeNames() {
  Names names{};
  names[pickle::kMark] = "MARK";
  names[pickle::kStop] = "STOP";
  names[pickle::kPop] = "POP";
  names[pickle::kPopMark] = "POP_MARK";
  names[pickle::kDup] = "DUP";
  names[pickle::kBinBytes] = "BINBYTES";
  names[pickle::kShortBinBytes] = "SHORT_BINBYTES";
  names[pickle::kFloat] = "FLOAT";
  names[pickle::kBinFloat] = "BINFLOAT";
  names[pickle::kInt] = "INT";
  names[pickle::kBinInt] = "BININT";
  names[pickle::kBinInt1] = "BININT1";
  names[pickle::kLong] = "LONG";
  names[pickle::kBinInt2] = "BININT2";
  names[pickle::kNone] = "NONE";
  names[pickle::kPersId] = "PERSID";
  names[pickle::kBinPersId] = "BINPERSID";
  names[pickle::kReduce] = "REDUCE";
  names[pickle::kString] = "STRING";
  names[pickle::kBinString] = "BINSTRING";
  names[pickle::kShortBinString] = "SHORT_BINSTRING";
  names[pickle::kUnicode] = "UNICODE";
  names[pickle::kBinUnicode] = "BINUNICODE";
  names[pickle::kEmptyList] = "EMPTY_LIST";
  names[pickle::kAppend] = "APPEND";
  names[pickle::kBuild] = "BUILD";
  names[pickle::kGlobal] = "GLOBAL";
  names[pickle::kDict] = "DICT";
  names[pickle::kAppends] = "APPENDS";
  names[pickle::kGet] = "GET";
  names[pickle::kBinGet] = "BINGET";
  names[pickle::kInst] = "INST";
  names[pickle::kLongBinGet] = "LONG_BINGET";
  names[pickle::kList] = "LIST";
  names[pickle::kObj] = "OBJ";
  names[pickle::kPut] = "PUT";
  names[pickle::kBinPut] = "BINPUT";
  names[pickle::kLongBinPut] = "LONG_BINPUT";
  names[pickle::kSetItem] = "SETITEM";
  names[pickle::kTuple] = "TUPLE";
  names[pickle::kEmptyTuple] = "EMPTY_TUPLE";
  names[pickle::kSetItems] = "SETITEMS";
  names[pickle::kEmptyDict] = "EMPTY_DICT";
  names[pickle::kProto] = "PROTO";
  names[pickle::kNewObj] = "NEWOBJ";
  names[pickle::kExt1] = "EXT1";
  names[pickle::kExt2] = "EXT2";
  names[pickle::kExt4] = "EXT4";
  names[pickle::kTuple1] = "TUPLE1";
  names[pickle::kTuple2] = "TUPLE2";
  names[pickle::kTuple3] = "TUPLE3";
  names[pickle::kNewTrue] = "NEWTRUE";
  names[pickle::kNewFalse] = "NEWFALSE";
  names[pickle::kLong1] = "LONG1";
  names[pickle::kLong4] = "LONG4";
  names[pickle::kShortBinUnicode] = "SHORT_BINUNICODE";
  names[pickle::kBinUnicode8] = "BINUNICODE8";
  names[pickle::kBinBytes8] = "BINBYTES8";
  names[pickle::kEmptySet] = "EMPTY_SET";
  names[pickle::kAddItems] = "ADDITEMS";
  names[pickle::kFrozenSet] = "FROZENSET";
  names[pickle::kNewObjEx] = "NEWOBJ_EX";
  names[pickle::kStackGlobal] = "STACK_GLOBAL";
  names[pickle::kMemoize] = "MEMOIZE";
  names[pickle::kFrame] = "FRAME";
  names[pickle::kByteArray8] = "BYTEARRAY8";
  names[pickle::kNextBuffer] = "NEXT_BUFFER";
  names[pickle::kReadOnlyBuffer] = "READONLY_BUFFER";
  return names;
}

constexpr Names kNames = MakeNames();

}  // namespace

std::string_view PickleOpcodeName(uint8_t opcode) { return kNames[opcode]; }

}  // namespace haulway
