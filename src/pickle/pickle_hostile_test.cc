#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "pickle/pickle_depth.h"
#include "pickle/pickle_vm.h"
#include "pickle/torch_pickles_for_test.h"
#include "testing/shorthands.h"

namespace haulway {
namespace {

using std::string_literals::operator""s;

// Returns "kCode: message", or "ok".
std::string Outcome(const std::string& pickle,
                    const PickleOptions& options = {}) {
  TreeArena arena;
  const auto result =
      ParsePickle(std::as_bytes(std::span(pickle)), arena, options);
  if (result.ok()) return "ok";
  const Status status = result.status();
  EXPECT_TRUE(status.byte().has_value()) << status.message();
  return std::string(CodeName(status.code())) + ": " +
         std::string(status.message());
}

std::string Repeat(std::string_view text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

std::vector<std::string> TorchPickles() {
  return {test::FromHex(pickle::kStateDictHex),
          test::FromHex(pickle::kMixedHex)};
}

struct Bad {
  const char* name;
  std::string pickle;
  std::string outcome;
};

class BadPickle : public testing::TestWithParam<Bad> {};

TEST_P(BadPickle, IsRefused) {
  EXPECT_EQ(Outcome(GetParam().pickle), GetParam().outcome);
}

const Bad kBad[] = {
    {"Empty", "", "kTruncated: pickle ends without STOP; at byte 0"},
    {"NoStop", "N", "kTruncated: pickle ends without STOP; at byte 1"},
    {"NothingToStopWith", ".",
     "kCorrupt: STOP with 0 items on the stack: expected 1; at byte 0"},
    {"TwoItemsLeft", "NN.",
     "kCorrupt: STOP with 2 items on the stack: expected 1; at byte 2"},
    {"MarkLeft", "(N.", "kCorrupt: STOP with 1 MARK left open; at byte 2"},
    {"UnknownOpcode", "\xff.", "kCorrupt: unknown opcode 0xff; at byte 0"},
    {"Underflow", "N\x86.",
     "kCorrupt: stack underflow in TUPLE2: expected 2 items, found 1; at "
     "byte 1"},
    {"UnderflowAboveMark", "N(N\x86.",
     "kCorrupt: stack underflow in TUPLE2: expected 2 items, found 1; at "
     "byte 3"},
    {"NoMark", "Nt.", "kCorrupt: TUPLE without a MARK before it; at byte 1"},
    {"LongText", "X\x2c\x01\0\0hello worlds"s,
     "kTruncated: BINUNICODE argument needs 300 bytes, 12 remain; at byte 0"},
    {"HugeText", "\x8d\xff\xff\xff\xff\xff\xff\xff\xff."s,
     "kTruncated: BINUNICODE8 argument needs 18446744073709551615 bytes, 1 "
     "remain; at byte 0"},
    {"NotUtf8", "X\1\0\0\0\xff."s,
     "kCorrupt: BINUNICODE argument is not UTF-8; at byte 0"},
    {"LineWithoutEnd", "I12",
     "kTruncated: INT argument has no end of line, 2 bytes remain; at byte "
     "0"},
    {"NoNumber", "I1x\n.",
     "kCorrupt: INT argument '1x' is malformed; at byte 0"},
    {"LeadingZero", "I07\n.",
     "kCorrupt: INT argument '07' is malformed; at byte 0"},
    {"NoFloat", "Fnan(1)\n.",
     "kCorrupt: FLOAT argument 'nan(1)' is malformed; at byte 0"},
    {"NoQuote", "Sa\n.",
     "kCorrupt: STRING argument 'a' is malformed; at byte "
     "0"},
    {"BadEscape", "V\\u12\n.",
     "kCorrupt: UNICODE argument '\\\\u12' is malformed; at byte 0"},
    {"EscapePastUnicode", "V\\U00110000\n.",
     "kCorrupt: UNICODE argument '\\\\U00110000' is malformed; at byte 0"},
    {"NegativeLength", "\x8b\xff\xff\xff\xff.",
     "kCorrupt: LONG4 argument of negative length; at byte 0"},
    {"UnknownMemo", "h\5.",
     "kCorrupt: BINGET of memo entry 5, which was never put; at byte 0"},
    {"SkippedMemo",
     "Nq\5"
     "0h\4.",
     "kCorrupt: BINGET of memo entry 4, which was never put; at byte 4"},
    {"NegativeMemo", "Np-1\n.",
     "kCorrupt: PUT argument '-1' is no memo index; at byte 1"},
    {"NewerProtocol", "\x80\x06N.",
     "kUnsupported: pickle protocol 6: expected at most 5; at byte 0"},
    {"LateProto", "N0\x80\2N.",
     "kCorrupt: PROTO after the first opcode; at byte 2"},
    {"FramePastEnd", "\x95\5\0\0\0\0\0\0\0N."s,
     "kTruncated: FRAME of 5 bytes, 2 remain; at byte 0"},
    {"StopWithinFrame", "\x95\3\0\0\0\0\0\0\0N.N"s,
     "kCorrupt: STOP within a frame; at byte 10"},
    {"Extension", "\x82\1.",
     "kUnsafe: EXT1 names an object by a number of a registry that is not in "
     "the file; at byte 0"},
    {"Buffer", "\x97.",
     "kUnsupported: NEXT_BUFFER needs a buffer from outside the pickle; at "
     "byte 0"},
    {"AppendToTuple", ")Na.",
     "kCorrupt: APPEND to a tuple: expected a list; at byte 2"},
    {"AppendToTensor", "ctorch\nTensor\n)RNa.",
     "kUnsafe: APPEND to an object: expected a list; at byte 17"},
    {"SetItemOnTensor", "ctorch\nTensor\n)RNNs.",
     "kUnsafe: SETITEM on an object: expected a dict; at byte 18"},
    {"SetItemOnList", "]NNs.",
     "kCorrupt: SETITEM on a list: expected a dict; at byte 3"},
    {"AddItemsToList", "](N\x90.",
     "kCorrupt: ADDITEMS to a list: expected a set; at byte 3"},
    {"OddItems", "}(Nu.",
     "kCorrupt: SETITEMS has a key without a value; at byte 3"},
    {"ListAsKey", "}]Ns.",
     "kCorrupt: SETITEM with an unhashable key: found a list; at byte 3"},
    {"ListInTupleAsKey", "}]\x85Ns.",
     "kCorrupt: SETITEM with an unhashable key: found a tuple that holds one; "
     "at byte 4"},
    {"CallOfText", "\x8c\1a)R.",
     "kCorrupt: REDUCE of a str: expected a global; at byte 4"},
    {"CallOfPersistent", "NQ)R.",
     "kCorrupt: REDUCE of a persistent id: expected a global; at byte 3"},
    {"CallOfDType", "ctorch\nfloat32\n)R.",
     "kUnsafe: REDUCE of 'torch.float32', which is not to be called; at byte "
     "16"},
    {"CallOfObject", "ctorch\nSize\n)R)R.",
     "kUnsafe: REDUCE calls what another call made: expected a global; at "
     "byte 15"},
    {"ArgumentsInList", "ctorch\nSize\n]R.",
     "kCorrupt: REDUCE with arguments in a list: expected a tuple; at byte "
     "13"},
    {"BuildOfClass", "ctorch\nTensor\n}b.",
     "kUnsafe: BUILD of a global: expected an object; at byte 15"},
    {"BuildOfDict", "}}b.",
     "kCorrupt: BUILD of a dict: expected an object; at byte 2"},
    {"BuildTwice", "ctorch\nTensor\n)R}b}b.",
     "kCorrupt: BUILD of an object that has a state already; at byte 19"},
    {"SpecialAttribute", "ctorch\nTensor\n)R}\x8c\x09__class__Nsb.",
     "kUnsafe: state sets the special attribute '__class__'; at byte 30"},
    {"SpecialSlot",
     "ctorch\nTensor\n)RN}\x8c\x09__class__Ns\x86"
     "b.",
     "kUnsafe: state sets the special attribute '__class__'; at byte 32"},
    {"SpecialAttributeSetLater",
     "ctorch\nTensor\n)R}q\0bh\0\x8c\x09__class__Ns0."s,
     "kUnsafe: state sets the special attribute '__class__'; at byte 19"},
    {"BadEncodeArguments", "c_codecs\nencode\n\x8c\1a\x8c\5rot13\x86R.",
     "kCorrupt: REDUCE of plain data with arguments it does not take; at byte "
     "27"},
    {"StackGlobalOfInts", "K\1K\2\x93.",
     "kCorrupt: STACK_GLOBAL of an int and an int: expected two names; at "
     "byte 4"},
    // Attacks that other scanners have missed.
    {"OsSystem", "cos\nsystem\n\x8c\2ls\x85R.",
     "kUnsafe: global 'os.system' is not allowed; at byte 0"},
    {"PosixSystem", "cposix\nsystem\n\x8c\2ls\x85R.",
     "kUnsafe: global 'posix.system' is not allowed; at byte 0"},
    {"EvalOfPython2",
     "c__builtin__\neval\n\x8c\1"
     "1\x85R.",
     "kUnsafe: global 'builtins.eval' is not allowed; at byte 0"},
    {"CommandsOfPython2", "ccommands\ngetoutput\n.",
     "kUnsafe: global 'subprocess.getoutput' is not allowed; at byte 0"},
    {"Getattr", "cbuiltins\ngetattr\n.",
     "kUnsafe: global 'builtins.getattr' is not allowed; at byte 0"},
    {"DottedName", "\x8c\5torch\x8c\x10Tensor.__class__\x93.",
     "kUnsafe: global 'torch.Tensor.__class__' is not allowed; at byte 25"},
    {"NamesFromMemo",
     "\x8c\2os\x94"
     "0\x8c\6system\x94"
     "0h\0h\1\x93."s,
     "kUnsafe: global 'os.system' is not allowed; at byte 20"},
    {"InstOfSystem", "(\x8c\2lsios\nsystem\n.",
     "kUnsafe: global 'os.system' is not allowed; at byte 5"},
    {"NameThrownAway", "cos\nsystem\n0N.",
     "kUnsafe: global 'os.system' is not allowed; at byte 0"},
    {"Pip", "cpip\nmain\n.",
     "kUnsafe: global 'pip.main' is not allowed; at byte 0"},
    {"LoadOfLoad", "ctorch\nload\n.",
     "kUnsafe: global 'torch.load' is not allowed; at byte 0"},
    {"Reconstructor", "ccopy_reg\n_reconstructor\n.",
     "kUnsafe: global 'copyreg._reconstructor' is not allowed; at byte 0"},
    {"EmptyName", "c\n\n.",
     "kCorrupt: GLOBAL of '', '': expected two names; "
     "at byte 0"},
};

INSTANTIATE_TEST_SUITE_P(Pickle, BadPickle, testing::ValuesIn(kBad),
                         [](const auto& info) { return info.param.name; });

// Runs every opcode in every state of the stack, with and without arguments.
TEST(HostilePickle, EveryOpcodeInEveryStateIsTyped) {
  const std::string prefixes[] = {
      "",
      "(",
      "((",
      "N",
      "(N",
      "N(",
      "NN",
      "NNN",
      "]",
      "](",
      "](N",
      "]N",
      "}",
      "}(",
      "}(NN",
      "}(]N",
      "}NN",
      "}]N",
      "\x8f(",
      "\x8f(N",
      "\x8f(]",
      ")",
      "))",
      "K\1)",
      "\x8c\1a\x8c\1"
      "b",
      "ctorch\nSize\n",
      "ctorch\nSize\n)",
      "ctorch\nSize\n)}",
      "ctorch\nSize\n)R",
      "ctorch\nSize\n)RN",
      "ctorch\nSize\n)R}",
      "ctorch\nSize\n)RNN",
      "ctorch\nSize\n)R(",
      "ctorch\nSize\n)R(NN",
      "(ctorch\nSize\n",
      "(ctorch\nSize\n)",
      "ccollections\nOrderedDict\n)R}",
      "ccollections\nOrderedDict\n]",
      "ccollections\nOrderedDict\n](NNe\x85",
      "c__builtin__\nset\n]\x85",
      "c__builtin__\nset\n](]e\x85",
      "c__builtin__\ncomplex\n(NNt",
      "c_codecs\nencode\n)",
      "NQ",
      "NQ)",
      "Nq\1",
      "]q\1"
      "h\1a",
  };
  const std::string suffixes[] = {"",
                                  ".",
                                  "\1.",
                                  "1\n.",
                                  "a\nb\n.",
                                  std::string(8, '\0') + ".",
                                  std::string(9, '\xff') + "."};
  for (const bool scan : {false, true}) {
    PickleOptions options;
    options.scan = scan;
    int succeeded = 0;
    for (const std::string& prefix : prefixes) {
      for (int opcode = 0; opcode < 256; ++opcode) {
        for (const std::string& suffix : suffixes) {
          const std::string pickle =
              prefix + static_cast<char>(opcode) + suffix;
          succeeded += Outcome(pickle, options) == "ok" ? 1 : 0;
        }
      }
    }
    EXPECT_GT(succeeded, 100);
  }
}

TEST(HostilePickle, TruncationAtEveryByteIsTyped) {
  for (const std::string& pickle : TorchPickles()) {
    ASSERT_EQ(Outcome(pickle), "ok");
    for (size_t size = 0; size < pickle.size(); ++size) {
      EXPECT_TRUE(Outcome(pickle.substr(0, size)).starts_with("kTruncated"))
          << size;
    }
  }
}

TEST(HostilePickle, EveryBitFlipIsTypedOrHarmless) {
  for (std::string pickle : TorchPickles()) {
    int refused = 0;
    for (size_t bit = 0; bit < pickle.size() * 8; ++bit) {
      pickle[bit / 8] ^= static_cast<char>(1 << bit % 8);
      refused += Outcome(pickle) != "ok" ? 1 : 0;
      pickle[bit / 8] ^= static_cast<char>(1 << bit % 8);
    }
    EXPECT_GT(refused, 0);
  }
}

TEST(HostilePickle, ScanSeesWhatLoadRefuses) {
  for (std::string pickle : TorchPickles()) {
    PickleOptions scan;
    scan.scan = true;
    for (size_t bit = 0; bit < pickle.size() * 8; ++bit) {
      pickle[bit / 8] ^= static_cast<char>(1 << bit % 8);
      const std::string outcome = Outcome(pickle);
      TreeArena arena;
      const auto result =
          ParsePickle(std::as_bytes(std::span(pickle)), arena, scan);
      ASSERT_TRUE(result.ok());
      const auto& findings = result.value().findings;
      if (outcome == "ok") {
        EXPECT_TRUE(findings.empty()) << bit;
      } else {
        ASSERT_FALSE(findings.empty()) << bit << outcome;
        EXPECT_TRUE(outcome.ends_with(findings[0].message))
            << outcome << " / " << findings[0].message;
      }
      pickle[bit / 8] ^= static_cast<char>(1 << bit % 8);
    }
  }
}

TEST(PickleScan, GoesOnAfterWhatIsUnsafe) {
  const std::string pickle =
      "cos\nsystem\n\x8c\2ls\x85Rcos\nsystem\n0cnt\nopen\n0)R\xff";
  TreeArena arena;
  PickleOptions options;
  options.scan = true;
  const auto result =
      ParsePickle(std::as_bytes(std::span(pickle)), arena, options);
  ASSERT_TRUE(result.ok());
  std::vector<std::string> messages;
  for (const Finding& finding : result.value().findings) {
    messages.push_back(finding.message);
  }
  EXPECT_THAT(
      messages,
      testing::ElementsAre(
          "global 'os.system' is not allowed; at byte 0",
          "global 'nt.open' is not allowed; at byte 29",
          "REDUCE calls what another call made: expected a global; at byte 40",
          "unknown opcode 0xff; at byte 41"));
  EXPECT_EQ(result.value().mentions.size(), 3U);
  EXPECT_EQ(result.value().mentions[1].byte, 17U);
  EXPECT_FALSE(result.value().complete);
}

TEST(PickleLimits, HoldAtTheCapAndPastIt) {
  PickleOptions options;
  options.limits.max_pickle_bytes = 3;
  EXPECT_EQ(Outcome("]0N.", options),
            "kLimit: pickle is longer than max_pickle_bytes = 3; at byte 3");
  EXPECT_EQ(Outcome("N..", options), "ok");

  options = {};
  options.limits.max_pickle_protocol = 2;
  EXPECT_EQ(Outcome("\x80\2N.", options), "ok");
  EXPECT_EQ(Outcome("\x80\3N.", options),
            "kLimit: pickle protocol 3: more than max_pickle_protocol = 2; at "
            "byte 0");

  options = {};
  options.limits.max_memo_entries = 2;
  EXPECT_EQ(Outcome("N\x94\x94.", options), "ok");
  EXPECT_EQ(Outcome("N\x94\x94\x94.", options),
            "kLimit: memo has more than max_memo_entries = 2 entries; at byte "
            "3");

  options = {};
  options.limits.max_items = 2;
  EXPECT_EQ(Outcome("](NNe.", options), "ok");
  EXPECT_EQ(Outcome("](NNeNa.", options),
            "kLimit: APPEND makes a container of 3 items: more than max_items "
            "= 2; at byte 6");
  EXPECT_TRUE(Outcome("(NNNt.", options).starts_with("kLimit"));
  EXPECT_TRUE(Outcome("NNN\x87.", options).starts_with("kLimit"));
  EXPECT_TRUE(Outcome("}(K\1NK\2NK\3Nu.", options).starts_with("kLimit"));

  options = {};
  options.limits.max_integer_bytes = 2;
  EXPECT_EQ(Outcome("\x8a\2\1\1.", options), "ok");
  EXPECT_EQ(Outcome("\x8a\3\1\1\1.", options),
            "kLimit: LONG1 argument of 3 bytes: more than max_integer_bytes = "
            "2; at byte 0");
}

TEST(PickleLimits, DepthHoldsForPlainNesting) {
  PickleOptions options;
  options.limits.max_depth = 10;
  EXPECT_EQ(Outcome("N" + std::string(10, '\x85') + ".", options), "ok");
  EXPECT_EQ(Outcome("N" + std::string(11, '\x85') + ".", options),
            "kLimit: tree is 11 deep: more than max_depth = 10; at byte 12");
  EXPECT_EQ(Outcome(std::string(10, ']') + std::string(9, 'a') + ".", options),
            "ok");
  EXPECT_TRUE(
      Outcome(std::string(11, ']') + std::string(10, 'a') + ".", options)
          .starts_with("kLimit"));
}

// Each list is appended to the next one from the memo, the outermost first.
TEST(PickleLimits, DepthHoldsForNestingThroughTheMemo) {
  for (const int depth : {1000, 1001}) {
    std::string pickle = "]p0\n";
    for (int i = 1; i < depth; ++i) {
      pickle +=
          "g" + std::to_string(i - 1) + "\n]p" + std::to_string(i) + "\na0";
    }
    EXPECT_EQ(Outcome(pickle + "."),
              depth == 1000
                  ? "ok"
                  : "kLimit: tree is 1001 deep: more than max_depth = 1000; "
                    "at byte " +
                        std::to_string(pickle.size()));
  }
}

TEST(PickleLimits, DeepBombIsRefused) {
  EXPECT_TRUE(Outcome("N" + std::string(1'000'000, '\x85') + ".")
                  .starts_with("kLimit: tree is 1000000 deep"));
}

// Nesting of a thousand levels is allowed. If each mention counted, there would
// be two to the power of that many values.
TEST(PickleLimits, SharedPartsCountOnce) {
  std::string pickle = "N";
  for (int i = 0; i < 900; ++i) pickle += "2\x86";
  EXPECT_EQ(Outcome(pickle + "."), "ok");
}

TEST(PickleLimits, KeyOfSharedPartsIsNotWalkedForever) {
  std::string pickle = "}K\1";
  for (int i = 0; i < 100; ++i) pickle += "2\x86";
  EXPECT_TRUE(
      Outcome(pickle + "Ns.")
          .starts_with(
              "kLimit: tree takes more than max_tree_bytes_per_byte = 64"));
}

// The limit also counts values on the stack, and discarded ones.
TEST(PickleLimits, TreesAreInProportionToWhatIsStored) {
  const std::string pickles[] = {
      "](" + std::string(1'000'000, '}') + "e.",
      "(" + std::string(1'000'000, 'N') + "1N.",
      Repeat("N\x94\x30", 300'000) + "N.",
      Repeat("]0", 500'000) + "N.",
  };
  for (const std::string& pickle : pickles) {
    PickleOptions options;
    options.limits.max_tree_bytes_per_byte = 1 << 20;
    options.stored_bytes = 1000;
    EXPECT_TRUE(
        Outcome(pickle, options)
            .starts_with("kLimit: tree takes more than "
                         "max_tree_bytes_per_stored_byte = 256; at byte "));
    options.stored_bytes = 1'000'000;
    options.limits.max_tree_bytes = 1'000'000;
    EXPECT_TRUE(Outcome(pickle, options)
                    .starts_with("kLimit: tree takes more than max_tree_bytes "
                                 "= 1000000; at byte "));
  }
}

TEST(PickleLimits, TreesMayTakeWhatTheCapSays) {
  const std::string pickle = "](" + std::string(100'000, '}') + "e.";
  PickleOptions options;
  options.limits.max_tree_bytes_per_byte = 1 << 20;
  const auto takes = [&](uint64_t most) {
    options.limits.max_tree_bytes = most;
    return Outcome(pickle, options) == "ok";
  };
  uint64_t too_few = 0;
  uint64_t enough = 100 * 100'000;
  ASSERT_TRUE(takes(enough));
  while (enough - too_few > 1) {
    const uint64_t middle = (too_few + enough) / 2;
    (takes(middle) ? enough : too_few) = middle;
  }
  // A dict, its slot on the stack and its slot in the list.
  EXPECT_GT(enough, (32 + 18 + 16) * 100'000u - 64 * kKiB);
  EXPECT_TRUE(takes(enough));
  EXPECT_FALSE(takes(enough - 1));
}

TEST(PickleLimits, CopiesOfSharedDataAreNotMadeForever) {
  std::string list = "](";
  list += std::string(100'000, 'N') +
          "eq\1"
          "0c__builtin__\nset\nq\2"
          "0";
  for (int i = 0; i < 20'000; ++i) list += "h\2h\1\x85R0";
  EXPECT_TRUE(Outcome(list + "N.").starts_with("kLimit: tree takes more"));
}

TEST(PickleLimits, FarMemoTakesNoMemory) {
  std::string pickle = "N";
  for (int i = 0; i < 1000; ++i) {
    pickle += "r\xff\xff\xff" + std::string(1, static_cast<char>(i));
  }
  EXPECT_EQ(Outcome(pickle + "."), "ok");
}

TEST(PickleDepth, CountsCyclesOnce) {
  TreeArena arena;
  const std::string cycle =
      "]q\1(h\1\x85\x85"
      "e.";
  const auto result = ParsePickle(std::as_bytes(std::span(cycle)), arena);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(pickle::MeasureDepth(result.value().root), 3U);
}

TEST(PickleDepth, TakesTheLongestPathToSharedParts) {
  TreeArena arena;
  // (x, ((x,),)) where x is [[]]: the second path to x is the longer one.
  const std::string shared = "]]aq\1h\1\x85\x85\x86.";
  const auto result = ParsePickle(std::as_bytes(std::span(shared)), arena);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(pickle::MeasureDepth(result.value().root), 5U);
}

}  // namespace
}  // namespace haulway
