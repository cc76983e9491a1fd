#include "pickle/pickle_vm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "haulway/pickle.h"
#include "pickle/pickle_opcodes.h"
#include "pickle/torch_pickles_for_test.h"
#include "testing/shorthands.h"

namespace haulway {
namespace {

using std::string_literals::operator""s;

// A pickle and its tree, which refers to the pickle.
struct Parsed {
  explicit Parsed(std::string pickle, const PickleOptions& options = {})
      : bytes(std::move(pickle)),
        result(ParsePickle(std::as_bytes(std::span(bytes)), arena, options)) {}

  const Value& root() const { return result.value().root; }
  std::string error() const {
    const Status status = result.status();
    return std::string(CodeName(status.code())) + ": " +
           std::string(status.message());
  }

  std::string bytes;
  TreeArena arena;
  Result<PickleResult> result;
};

// Formats like repr(), with angle brackets for what Python cannot represent.
std::string Show(const Value& value);

std::string ShowAll(std::span<const Value> items) {
  std::string out;
  for (const Value& item : items) {
    if (!out.empty()) out += ", ";
    out += Show(item);
  }
  return out;
}

std::string ShowItems(const Mapping& mapping) {
  std::string out;
  for (const MappingItem& item : mapping.items()) {
    if (!out.empty()) out += ", ";
    out += Show(item.key) + ": " + Show(item.value);
  }
  return out;
}

std::string ShowText(const Value& value) {
  std::string out;
  for (const char c : value.text()) {
    char hex[8];
    const auto byte = static_cast<unsigned char>(c);
    std::snprintf(hex, sizeof(hex), "\\x%02x", byte);
    out += byte >= 0x20 && byte < 0x7F ? std::string(1, c) : hex;
  }
  return "'" + out + "'";
}

std::string Show(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.boolean() ? "True" : "False";
    case Kind::kInt:
      return std::to_string(value.integer());
    case Kind::kBigInt:
      return "<big " + ShowText(value) + ">";
    case Kind::kFloat:
      return std::to_string(value.real());
    case Kind::kComplex:
      return std::to_string(value.complex().real()) + "+" +
             std::to_string(value.complex().imag()) + "j";
    case Kind::kString:
      return ShowText(value);
    case Kind::kRawString:
      return "r" + ShowText(value);
    case Kind::kBytes:
      return "b" + ShowText(value);
    case Kind::kByteArray:
      return "bytearray(" + ShowText(value) + ")";
    case Kind::kTuple:
      return "(" + ShowAll(value.sequence().items()) + ")";
    case Kind::kList:
      return "[" + ShowAll(value.sequence().items()) + "]";
    case Kind::kSet:
      return "set(" + ShowAll(value.sequence().items()) + ")";
    case Kind::kFrozenSet:
      return "frozenset(" + ShowAll(value.sequence().items()) + ")";
    case Kind::kDict:
      return "{" + ShowItems(value.mapping()) + "}";
    case Kind::kOrderedDict:
    case Kind::kCounter: {
      std::string out = value.is(Kind::kCounter) ? "Counter{" : "OrderedDict{";
      out += ShowItems(value.mapping()) + "}";
      if (!value.mapping().state.is(Kind::kNone)) {
        out += "|" + Show(value.mapping().state);
      }
      return out;
    }
    case Kind::kGlobal:
      return "<" + std::string(value.global().module) + "." +
             std::string(value.global().name) + ">";
    case Kind::kObject: {
      const Object& object = value.object();
      std::string out = object.is_new ? "new " : "";
      out += Show(object.called) + Show(object.args);
      if (object.extras != nullptr) {
        out += "+[" + ShowAll(object.extras->appended.items()) + "]{" +
               ShowItems(object.extras->items) + "}";
        out += Show(object.extras->kwargs);
      }
      if (!object.state.is(Kind::kNone)) out += "|" + Show(object.state);
      return out;
    }
    case Kind::kPersistent:
      return "<id " + Show(value.persistent_id()) + ">";
  }
  return "?";
}

struct Good {
  const char* name;
  std::string pickle;
  std::string shown;
};

class GoodPickle : public testing::TestWithParam<Good> {};

TEST_P(GoodPickle, GivesItsValue) {
  const Parsed parsed(GetParam().pickle + "ignored");
  ASSERT_TRUE(parsed.result.ok()) << parsed.error();
  EXPECT_EQ(Show(parsed.root()), GetParam().shown);
  EXPECT_EQ(parsed.result.value().consumed, GetParam().pickle.size());
}

const Good kGood[] = {
    {"None", "N.", "None"},
    {"NewTrue", "\x88.", "True"},
    {"NewFalse", "\x89.", "False"},
    {"IntTrue", "I01\n.", "True"},
    {"IntFalse", "I00\n.", "False"},
    {"Int", "I-12\n.", "-12"},
    {"IntWide", "I9223372036854775808\n.",
     "<big '\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x80\\x00'>"},
    {"Long", "L12L\n.", "12"},
    {"LongWide", "L-9223372036854775809L\n.",
     "<big '\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x7f\\xff'>"},
    {"BinInt", "J\xfe\xff\xff\xff.", "-2"},
    {"BinInt1", "K\xff.", "255"},
    {"BinInt2", "M\xff\xff.", "65535"},
    {"Long1Zero", "\x8a\x00."s, "0"},
    {"Long1", "\x8a\x02\x00\xff."s, "-256"},
    {"Long1Padded", "\x8a\x0a\x05\0\0\0\0\0\0\0\0\0."s, "5"},
    {"Long1Wide", "\x8a\x09\0\0\0\0\0\0\0\0\x01."s,
     "<big '\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x01'>"},
    {"Long4", "\x8b\x01\0\0\0\x7f."s, "127"},
    {"Float", "F1.5\n.", "1.500000"},
    {"FloatInf", "F-inf\n.", "-inf"},
    {"BinFloat", "G\x3f\xf8\0\0\0\0\0\0."s, "1.500000"},
    {"String", "S'a\\'\\x41\\n\\101\\q'\n.", "r'a'A\\x0aA\\q'"},
    {"StringDouble", "S\"it's\"\n.", "r'it's'"},
    {"BinString", "T\x01\0\0\0\xff."s, "r'\\xff'"},
    {"ShortBinString", "U\x01z.", "r'z'"},
    {"Unicode", "Va\\u00e9\xe9\\\\u0041\n.",
     "'a\\xc3\\xa9\\xc3\\xa9\\\\u0041'"},
    {"UnicodeWide", "V\\U0001f600\n.", "'\\xf0\\x9f\\x98\\x80'"},
    {"BinUnicode", "X\x02\0\0\0hi."s, "'hi'"},
    {"BinUnicodeSurrogate", "X\x03\0\0\0\xed\xa0\x80."s, "'\\xed\\xa0\\x80'"},
    {"ShortBinUnicode", "\x8c\x02hi.", "'hi'"},
    {"BinUnicode8", "\x8d\x02\0\0\0\0\0\0\0hi."s, "'hi'"},
    {"BinBytes", "B\x01\0\0\0\xff."s, "b'\\xff'"},
    {"ShortBinBytes", "C\x01\xff.", "b'\\xff'"},
    {"BinBytes8", "\x8e\x01\0\0\0\0\0\0\0\xff."s, "b'\\xff'"},
    {"ByteArray8", "\x96\x01\0\0\0\0\0\0\0\xff."s, "bytearray('\\xff')"},
    {"EmptyTuple", ").", "()"},
    {"Tuple1", "N\x85.", "(None)"},
    {"Tuple2", "K\1K\2\x86.", "(1, 2)"},
    {"Tuple3", "K\1K\2K\3\x87.", "(1, 2, 3)"},
    {"Tuple", "(K\1K\2K\3K\4t.", "(1, 2, 3, 4)"},
    {"EmptyList", "].", "[]"},
    {"List", "(K\1K\2l.", "[1, 2]"},
    {"Append", "]K\1aK\2a.", "[1, 2]"},
    {"Appends", "](K\1K\2e(K\3e(e.", "[1, 2, 3]"},
    {"EmptyDict", "}.", "{}"},
    {"Dict", "(K\1Nd.", "{1: None}"},
    {"SetItem", "}K\1Ns.", "{1: None}"},
    {"SetItems", "}(K\1NK\2Nu(u.", "{1: None, 2: None}"},
    {"EmptySet", "\x8f.", "set()"},
    {"AddItems", "\x8f(K\1K\2K\1\x90.", "set(1, 2)"},
    {"FrozenSet", "(K\1K\1\x91.", "frozenset(1)"},
    {"Put", "]p5\n0g5\n.", "[]"},
    {"BinPut",
     "]q\5"
     "0h\5.",
     "[]"},
    {"LongBinPut", "]r\5\0\0\0000j\5\0\0\0."s, "[]"},
    {"FarPut",
     "]r\xff\xff\xff\xff"
     "0j\xff\xff\xff\xff.",
     "[]"},
    {"Memoize", "K\1\x94K\2\x94h\0h\1\x86\x87."s, "(1, 2, (1, 2))"},
    {"Pop",
     "K\1K\2"
     "0.",
     "1"},
    {"PopMarkByPop", "K\1(0.", "1"},
    {"PopMark",
     "K\1(K\2K\3"
     "1.",
     "1"},
    {"Dup",
     "K\1"
     "2\x86.",
     "(1, 1)"},
    {"Proto", "\x80\2N.", "None"},
    {"Frame", "\x80\4\x95\2\0\0\0\0\0\0\0N."s, "None"},
    {"PersId", "Pab\n.", "<id 'ab'>"},
    {"BinPersId", "K\1K\2\x86Q.", "<id (1, 2)>"},
    {"Global", "ctorch\nFloatStorage\n.", "<torch.FloatStorage>"},
    {"StackGlobal", "\x8c\5torch\x8c\4Size\x93.", "<torch.Size>"},
    {"Reduce", "ctorch\nSize\n)R.", "<torch.Size>()"},
    {"NewObj", "ctorch\nSize\n)\x81.", "new <torch.Size>()"},
    {"NewObjEx", "ctorch\nSize\n)}K\1Ns\x92.",
     "new <torch.Size>()+[]{}{1: None}"},
    {"Obj", "(ctorch\nSize\nK\1o.", "<torch.Size>(1)"},
    {"Inst", "(K\1itorch\nSize\n.", "<torch.Size>(1)"},
    {"Build", "ctorch\nTensor\n)R}b.", "<torch.Tensor>()|{}"},
    {"OrderedDict", "ccollections\nOrderedDict\n)RK\1Ns}K\2Nsb.",
     "OrderedDict{1: None}|{2: None}"},
    {"OrderedDictOfList", "ccollections\nOrderedDict\n]](K\1K\2ea\x85R.",
     "OrderedDict{1: 2}"},
    {"Counter", "ccollections\nCounter\n}K\1K\5s\x85R.", "Counter{1: 5}"},
    {"Set", "c__builtin__\nset\n](K\1K\2K\1e\x85R.", "set(1, 2)"},
    {"FrozenSetCall", "cbuiltins\nfrozenset\n](K\1e\x85R.", "frozenset(1)"},
    {"Complex", "c__builtin__\ncomplex\nF1\nF2\n\x86R.", "1.000000+2.000000j"},
    {"CodecsEncode",
     "c_codecs\nencode\nX\2\0\0\0\xc3\xbfX\6\0\0\0latin1\x86R."s, "b'\\xff'"},
    {"ByteArray",
     "c__builtin__\nbytearray\nX\2\0\0\0\xc3\xbfX\7\0\0\0latin-1\x86R."s,
     "bytearray('\\xff')"},
    {"ByteArrayOfBytes", "cbuiltins\nbytearray\nC\1x\x85R.", "bytearray('x')"},
    {"EmptyBytes", "c__builtin__\nbytes\n)R.", "b''"},
    {"EqualNumbersAreOneKey", "}(K\1K\1\x88K\2G\x3f\xf0\0\0\0\0\0\0K\3u."s,
     "{1: 3}"},
    {"TextAndBytesAreTwoKeys", "}(C\1aN\x8c\1aNu.", "{b'a': None, 'a': None}"},
    {"TupleKeys", "}(K\1\x85K\1K\1\x85K\2u.", "{(1): 2}"},
    {"RenamedModule", "ctorch.tensor\n_rebuild_from_type_v2\n.",
     "<torch._tensor._rebuild_from_type_v2>"},
};

INSTANTIATE_TEST_SUITE_P(Opcodes, GoodPickle, testing::ValuesIn(kGood),
                         [](const auto& info) { return info.param.name; });

TEST(Pickle, ListMayHoldItself) {
  const Parsed parsed("]q\0h\0a."s);
  ASSERT_TRUE(parsed.result.ok()) << parsed.error();
  const Sequence& list = parsed.root().sequence();
  ASSERT_EQ(list.size, 1U);
  EXPECT_EQ(list.data[0].identity(), parsed.root().identity());
}

TEST(Pickle, KeepsSharedObjectsShared) {
  const Parsed parsed("(ctorch\nSize\n)Rq\1h\1t.");
  ASSERT_TRUE(parsed.result.ok()) << parsed.error();
  const auto items = parsed.root().sequence().items();
  EXPECT_EQ(items[0].identity(), items[1].identity());
}

TEST(Pickle, LargeDictKeepsFirstPlaceAndLastValue) {
  std::string pickle = "}";
  for (int round = 0; round < 2; ++round) {
    for (int batch = 0; batch < 20; ++batch) {
      pickle += '(';
      for (int i = 0; i < 100; ++i) {
        const int key = batch * 100 + i;
        pickle += 'M';
        pickle += static_cast<char>(key & 0xFF);
        pickle += static_cast<char>(key >> 8);
        pickle += 'K';
        pickle += static_cast<char>(round);
      }
      pickle += 'u';
    }
  }
  const Parsed parsed(pickle + '.');
  ASSERT_TRUE(parsed.result.ok()) << parsed.error();
  const auto items = parsed.root().mapping().items();
  ASSERT_EQ(items.size(), 2000U);
  for (int i = 0; i < 2000; ++i) {
    EXPECT_EQ(items[i].key.integer(), i);
    EXPECT_EQ(items[i].value.integer(), 1);
  }
}

TEST(Pickle, ReadsStateDictOfTorch) {
  const Parsed parsed(test::FromHex(pickle::kStateDictHex));
  ASSERT_TRUE(parsed.result.ok()) << parsed.error();
  EXPECT_EQ(
      Show(parsed.root()),
      "OrderedDict{'weight': <torch._utils._rebuild_tensor_v2>(<id ("
      "'storage', <torch.FloatStorage>, '0', 'cpu', 2)>, 0, (1, 2), (2, 1), "
      "False, OrderedDict{}), 'bias': <torch._utils._rebuild_tensor_v2>(<id "
      "('storage', <torch.FloatStorage>, '1', 'cpu', 1)>, 0, (1), (1), False, "
      "OrderedDict{})}|{'_metadata': OrderedDict{'': {'version': 1}}}");
  EXPECT_EQ(parsed.result.value().protocol, 2);
  EXPECT_EQ(parsed.result.value().opcodes[pickle::kBinPersId], 2U);
}

TEST(Pickle, ReadsEveryKindThatTorchWrites) {
  const Parsed parsed(test::FromHex(pickle::kMixedHex));
  ASSERT_TRUE(parsed.result.ok()) << parsed.error();
  const Mapping& mapping = parsed.root().mapping();
  EXPECT_EQ(Show(*mapping.Find("set")), "set(1, 2)");
  EXPECT_EQ(Show(*mapping.Find("b")), "b'\\xff\\x00'");
  EXPECT_EQ(Show(*mapping.Find("ba")), "bytearray('x')");
  EXPECT_EQ(Show(*mapping.Find("c")), "1.000000+2.000000j");
  EXPECT_EQ(mapping.Find("big")->kind(), Kind::kBigInt);
  EXPECT_EQ(Show(*mapping.Find("counter")), "Counter{'a': 2, 'b': 1}");
  const auto tied = mapping.Find("tied")->sequence().items();
  EXPECT_EQ(tied[0].identity(), tied[1].identity());
  EXPECT_EQ(Show(*mapping.Find("dt")), "<torch.float16>");
}

TEST(PickleGlobals, SayWhatTheyMean) {
  const Parsed parsed(
      "(ctorch\nHalfStorage\nctorch.cuda\nLongStorage\n"
      "ctorch.cuda.sparse\nIntTensor\nctorch\nuint7\nctorch\nint3\n"
      "ctorch\nfloat8_e5m2\nt.");
  ASSERT_TRUE(parsed.result.ok()) << parsed.error();
  const auto items = parsed.root().sequence().items();
  EXPECT_EQ(KindOf(items[0].global()), GlobalKind::kStorage);
  EXPECT_EQ(DTypeOf(items[0].global()), DType::kF16);
  EXPECT_EQ(KindOf(items[1].global()), GlobalKind::kCudaStorage);
  EXPECT_EQ(DTypeOf(items[1].global()), DType::kI64);
  EXPECT_EQ(KindOf(items[2].global()), GlobalKind::kLegacyTensor);
  EXPECT_TRUE(IsSparse(items[2].global()));
  EXPECT_EQ(DTypeOf(items[3].global()), DType::kU7);
  EXPECT_EQ(DTypeOf(items[4].global()), DType::kI3);
  EXPECT_EQ(DTypeOf(items[5].global()), DType::kF8E5M2);
}

TEST(PickleGlobals, CallerMayAllowMore) {
  const std::vector<std::string> also = {"my.Config", "os.system"};
  const GlobalTable table(also);
  PickleOptions options;
  options.globals = &table;
  const Parsed parsed("cmy\nConfig\n)\x81K\1aK\2Ns}b.", options);
  ASSERT_TRUE(parsed.result.ok()) << parsed.error();
  EXPECT_EQ(Show(parsed.root()), "new <my.Config>()+[1]{2: None}None|{}");

  const Parsed never("cos\nsystem\n.", options);
  EXPECT_EQ(never.error(),
            "kUnsafe: global 'os.system' is not allowed; at byte 0");
}

TEST(PickleGlobals, ScriptNamesNeedPermission) {
  GlobalTable table;
  table.AllowTorchScript();
  PickleOptions options;
  options.globals = &table;
  const Parsed parsed("c__torch__.m\nNet\n)\x81}b.", options);
  ASSERT_TRUE(parsed.result.ok()) << parsed.error();
  EXPECT_FALSE(Parsed("c__torch__.m\nNet\n.").result.ok());
}

TEST(PickleGlobals, DataOfPythonAndNumPyBecomesObjects) {
  const Parsed parsed(
      "(ctypes\nSimpleNamespace\n)R}b"
      "cargparse\nNamespace\n)\x81}b"
      "ccollections\ndefaultdict\ncbuiltins\nlist\n\x85RNNs"
      "ccollections\ndeque\n)RNa"
      "cnumpy.core.multiarray\nscalar\n)R"
      "cnumpy._core.multiarray\nscalar\n)Rt.");
  ASSERT_TRUE(parsed.result.ok()) << parsed.error();
  for (const Value& item : parsed.root().sequence().items()) {
    EXPECT_TRUE(item.is(Kind::kObject));
    EXPECT_FALSE(IsOpaque(item));
  }
  // Names that are loaded as data are saved as data.
  EXPECT_TRUE(IsDataGlobal("types", "SimpleNamespace"));
  EXPECT_TRUE(IsDataGlobal("numpy", "dtype"));
  EXPECT_TRUE(IsDataGlobal("torch", "Size"));
}

PickleOptions KeepOpaque() {
  PickleOptions options;
  options.keep_opaque = true;
  return options;
}

TEST(OpaqueObjects, StayInTheTreeWithWhatTheyHold) {
  // {"a": Run(1, b=2) with a state, a list and a dict, "n": 5}
  const Parsed parsed(
      "}(\x8c\1acmy\nRun\n(K\1t}\x8c\1bK\2s\x92K\3aK\4K\5s"
      "}\x8c\x09__class__Nsb\x8c\1nK\5u.",
      KeepOpaque());
  ASSERT_TRUE(parsed.result.ok()) << parsed.error();
  const Value& held = *parsed.root().mapping().Find("a");
  ASSERT_TRUE(held.is(Kind::kObject));
  EXPECT_TRUE(IsOpaque(held));
  const Object& object = held.object();
  EXPECT_EQ(object.callable->name, "Run");
  EXPECT_EQ(object.args.sequence().size, 1u);
  EXPECT_EQ(object.extras->appended.size, 1u);
  EXPECT_EQ(object.extras->items.size, 1u);
  EXPECT_EQ(object.extras->kwargs.mapping().size, 1u);
  EXPECT_EQ(object.state.mapping().size, 1u);
  EXPECT_EQ(parsed.root().mapping().Find("n")->integer(), 5);
  EXPECT_EQ(parsed.result->unsafe.message(),
            "global 'my.Run' is not allowed; at byte 5");
}

TEST(OpaqueObjects, MayBeCalledAndStandAsKeys) {
  // {getattr(x, "f")(1): None}
  const Parsed parsed("}cbuiltins\ngetattr\n(cmy\nx\n\x8c\1ftR(K\1tRNs.",
                      KeepOpaque());
  ASSERT_TRUE(parsed.result.ok()) << parsed.error();
  const Value& key = parsed.root().mapping().data[0].key;
  EXPECT_TRUE(IsOpaque(key));
  EXPECT_EQ(key.object().callable, nullptr);
  EXPECT_TRUE(IsOpaque(key.object().called));
}

TEST(OpaqueObjects, ModulesOfOldFilesAreCalledByTheirClass) {
  const Parsed parsed("(\x8c\6modulecmy\nNet\nNNtQ)\x81}b.", KeepOpaque());
  ASSERT_TRUE(parsed.result.ok()) << parsed.error();
  EXPECT_TRUE(IsOpaque(parsed.root()));
  EXPECT_EQ(parsed.root().object().callable->name, "Net");
}

TEST(OpaqueObjects, AreNoExcuseForAnythingElse) {
  const std::pair<std::string, std::string_view> cases[] = {
      // A call of the result of an allowed name.
      {"ctorch\nSize\n)R)R.", "kUnsafe: REDUCE calls what another call made"},
      {"ctorch\nTensor\n)RNNs.", "kUnsafe: SETITEM on an object"},
      {"cmy\nx\n0\xff.", "kUnsafe: global 'my.x' is not allowed; at byte 0"},
      {"cmy\nx\n", "kUnsafe: global 'my.x' is not allowed; at byte 0"},
      {"ccollections\nOrderedDict\n)R}\x8c\x09__class__Nsb.",
       "kUnsafe: state sets the special attribute"},
      {"\x82\1.", "kUnsafe: EXT1 names an object by a number"},
  };
  for (const auto& [pickle, expected] : cases) {
    EXPECT_TRUE(Parsed(pickle, KeepOpaque()).error().starts_with(expected))
        << Parsed(pickle, KeepOpaque()).error();
  }
}

}  // namespace
}  // namespace haulway
