#include "scan/pickle_tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/source.h"
#include "scan/pickle_names.h"

namespace haulway::scan {
namespace {

using namespace std::string_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Trace Follow(const std::string& pickle, TraceOptions options = {}) {
  const PickleNames names({});
  options.names = &names;
  auto trace = TracePickle(*MakeMemorySource(std::as_bytes(std::span(pickle))),
                           0, pickle.size(), options);
  EXPECT_TRUE(trace.ok());
  return *trace;
}

std::vector<std::string> Named(const Trace& trace) {
  std::vector<std::string> names;
  for (const NamedGlobal& global : trace.globals) {
    names.push_back(global.module + "." + global.name);
  }
  return names;
}

std::string Little(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

TEST(PickleTracer, FollowsAWholePickle) {
  const Trace trace = Follow(
      "\x80\x02]q\0(K\x01K\x02"
      "e."s);
  EXPECT_EQ(trace.end, TraceEnd::kStop);
  EXPECT_EQ(trace.length, 12u);
  EXPECT_EQ(trace.protocol, 2);
  EXPECT_THAT(trace.faults, IsEmpty());
}

TEST(PickleTracer, NamesWhatIsNotAllowedAtItsByte) {
  const Trace trace = Follow(
      "\x80\x02"
      "Ncos\nsystem\n.");
  ASSERT_EQ(trace.faults.size(), 1u);
  EXPECT_EQ(trace.faults[0].byte, 3u);
  EXPECT_THAT(trace.faults[0].message,
              HasSubstr("global 'os.system' is not allowed; at byte 3"));
}

TEST(PickleTracer, ResolvesStackGlobalsThroughTheMemo) {
  const Trace trace = Follow(
      "\x80\x04\x8c\x02os\x94\x8c\x06system\x94"
      "00h\0h\x01\x93."s);
  EXPECT_THAT(Named(trace), ElementsAre("os.system"));
  EXPECT_EQ(trace.end, TraceEnd::kStop);
}

TEST(PickleTracer, ReadsNamesInEveryKindOfText) {
  for (const std::string& os :
       {"\x8c\x02os"s, "X\x02\0\0\0os"s, "\x8d\x02\0\0\0\0\0\0\0os"s,
        "U\x02os"s, "T\x02\0\0\0os"s, "V\\u006fs\n"s, "S'\\x6fs'\n"s}) {
    const Trace trace = Follow("\x80\x04" + os + "\x8c\x06system\x93.");
    EXPECT_THAT(Named(trace), ElementsAre("os.system")) << os;
  }
}

TEST(PickleTracer, RenamesForPython2BelowProtocol3Only) {
  EXPECT_THAT(Named(Follow("\x80\x02"
                           "c__builtin__\neval\n.")),
              ElementsAre("builtins.eval"));
  const Trace trace = Follow(
      "\x80\x03"
      "c__builtin__\nlist\n.");
  EXPECT_THAT(Named(trace), ElementsAre("__builtin__.list"));
  EXPECT_EQ(trace.faults.size(), 1u);
  // The last PROTO opcode sets the protocol.
  EXPECT_THAT(Named(Follow("\x80\x02\x80\x04"
                           "c__builtin__\nlist\n.")),
              ElementsAre("__builtin__.list"));
  EXPECT_EQ(Follow("\x80\x02"
                   "c__builtin__\nlist\n.")
                .globals[0]
                .written,
            "__builtin__.list");
}

// pickle.dumps() writes 64 KiB and more like this at protocols 4 and 5.
TEST(PickleTracer, TakesLargeTextsBetweenFrames) {
  for (const char* head : {"B", "X"}) {
    const std::string large =
        head + Little(70'000, 4) + std::string(70'000, '\xff');
    const std::string pickle = "\x80\x04\x95" + Little(2, 8) + "]\x94" + large +
                               "\x94\x95" + Little(4, 8) + "aK\x01.";
    const Trace trace = Follow(pickle);
    EXPECT_EQ(trace.end, TraceEnd::kStop) << trace.why;
    EXPECT_THAT(trace.faults, IsEmpty());
    EXPECT_EQ(trace.length, pickle.size());
  }
}

TEST(PickleTracer, RefusesAnArgumentThatLeavesItsFrame) {
  const Trace trace =
      Follow("\x80\x04\x95" + Little(4, 8) + "\x8c\x05" + "abcdeN.");
  ASSERT_FALSE(trace.faults.empty());
  EXPECT_THAT(trace.faults[0].message,
              HasSubstr("SHORT_BINUNICODE runs past the end of its frame"));
}

TEST(PickleTracer, RefusesALineThatLeavesItsFrame) {
  const Trace trace = Follow("\x80\x04\x95" + Little(4, 8) + "cos\nsystem\n.");
  EXPECT_FALSE(trace.faults.empty());
}

TEST(PickleTracer, RefusesAFrameWithinAFrame) {
  const Trace trace = Follow("\x80\x04\x95" + Little(20, 8) + "\x95" +
                             Little(1, 8) + "NNNNNNNNNNNN.");
  ASSERT_FALSE(trace.faults.empty());
  EXPECT_THAT(trace.faults[0].message, HasSubstr("FRAME within a frame"));
}

TEST(PickleTracer, DoubtsAFrameLongerThanWhatRemains) {
  EXPECT_THAT(Follow("\x80\x04\x95" + Little(99, 8) + "N.").doubt,
              HasSubstr("FRAME is longer"));
}

TEST(PickleTracer, RefusesWhatIsCalledButIsNoName) {
  const Trace trace = Follow(
      "\x80\x02"
      "ccollections\nOrderedDict\n)R)R.");
  ASSERT_EQ(trace.faults.size(), 1u);
  EXPECT_THAT(trace.faults[0].message, HasSubstr("was made by a call"));
}

TEST(PickleTracer, RefusesStateForAClass) {
  const Trace trace = Follow(
      "\x80\x02"
      "ccollections\nCounter\n}b.");
  ASSERT_EQ(trace.faults.size(), 1u);
  EXPECT_THAT(trace.faults[0].message, HasSubstr("itself would be changed"));
}

TEST(PickleTracer, RefusesExtensions) {
  EXPECT_EQ(Follow("\x80\x02\x82\x05.").faults.size(), 1u);
  // Tensor data may begin with these bytes.
  EXPECT_EQ(Follow("\x82\x05.").end, TraceEnd::kBroken);
}

TEST(PickleTracer, EndsWhereEveryUnpicklerFails) {
  for (const std::string& broken :
       {"\x80\x06N."s, "0."s, "."s, "e."s, "R."s, "h\x05."s, "Iword\n."s,
        "Sword\n."s, "\x8b\xff\xff\xff\xff."s, "\xff"s, "P1\n."s,
        "class Reader:\n  pass\n"s, "{\"a\": 1}"s}) {
    const Trace trace = Follow(broken);
    EXPECT_EQ(trace.end, TraceEnd::kBroken) << broken;
    EXPECT_THAT(trace.globals, IsEmpty()) << broken;
  }
}

TEST(PickleTracer, FollowsWhatBuffersFromOutsideLetPass) {
  const Trace trace = Follow(
      "\x97\x98"
      "0cos\nsystem\n.");
  EXPECT_EQ(trace.end, TraceEnd::kStop);
  EXPECT_THAT(trace.doubt, HasSubstr("NEXT_BUFFER"));
  EXPECT_THAT(Named(trace), ElementsAre("os.system"));
}

TEST(PickleTracer, KnowsThatNumbersOfTheMemoHaveNoEndToPython) {
  const Trace trace = Follow("Np99999999999999999999\n0cos\nsystem\n.");
  EXPECT_EQ(trace.end, TraceEnd::kStop);
  EXPECT_FALSE(trace.faults.empty());
  EXPECT_THAT(Named(trace), ElementsAre("os.system"));
}

TEST(PickleTracer, SaysThatThePickleIsCut) {
  const std::string whole =
      "\x80\x04\x8c\x03"
      "abcK\x01\x86."s;
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_EQ(Follow(whole.substr(0, length)).end, TraceEnd::kCut) << length;
  }
}

TEST(PickleTracer, ImportsALineThatIsNotEnded) {
  // The Python unpickler imports it.
  EXPECT_THAT(Named(Follow("cos\nsystemX")), ElementsAre("os.system"));
}

// getattr(CLASS, 'MEMBER') in the opcodes of several protocols.
const std::string kClass =
    "ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n";
const std::string kMember = "X\x13\0\0\0TORCH_CHANNELS_LAST"s;

TEST(PickleTracer, TakesMembersOfKnownEnumerations) {
  for (const std::string& whole :
       {"\x80\x02"
        "c__builtin__\ngetattr\n" +
            kClass + kMember + "\x86R.",
        "\x80\x02"
        "c__builtin__\ngetattr\nq\0"s +
            kClass + "q\x01" + kMember +
            "q\x02\x86q\x03Rq\x04h\0h\x01h\x02\x86Rh\0h\x03R\x87."s,
        "c__builtin__\ngetattr\n(" + kClass + "V" + kMember.substr(5) + "\ntR.",
        "\x80\x04\x8c\x08"
        "builtins\x8c\x07"
        "getattr\x93\x94" +
            kClass + kMember + "\x86\x94R\x94."}) {
    const Trace trace = Follow(whole);
    EXPECT_EQ(trace.end, TraceEnd::kStop);
    EXPECT_THAT(trace.faults, IsEmpty());
    ASSERT_FALSE(trace.globals.empty());
    EXPECT_EQ(trace.globals[0].name, "getattr");
    EXPECT_TRUE(trace.globals[0].allowed);
  }
}

TEST(PickleTracer, TakesGetattrForNothingElse) {
  const std::string get =
      "\x80\x03"
      "cbuiltins\ngetattr\n";
  const std::string good = kClass + kMember + "\x86R";
  ASSERT_THAT(Follow(get + good + ".").faults, IsEmpty());
  const std::vector<std::string> all = {
      // getattr is left on the stack, or in the result.
      "."s, "0N."s, ")R."s, "q\x01" + good + "h\x01.",
      "q\x01" + good + "h\x01\x86.", "2" + good + "\x86.",
      good.substr(0, good.size() - 1) + ".",
      // The pickle breaks before getattr is used.
      ""s, good.substr(0, good.size() - 1),
      // Other objects, other names, more arguments.
      "ccollections\nOrderedDict\n" + kMember + "\x86R.",
      kMember + kMember + "\x86R.", kClass + "X\x03\0\0\0mro\x86R."s,
      kClass + "X\0\0\0\0\x86R."s, kClass + "X\x09\0\0\0__class__\x86R."s,
      kClass + "X\x0A\0\0\0__MODULE__\x86R."s, kClass + "X\x03\0\0\0A.B\x86R."s,
      kClass + "K\x01\x86R.", kClass + kMember + "N\x87R.", kClass + "\x85R.",
      kClass + kMember + "\x86\x85R.",
      // The result of a call is not known.
      kClass + "K\0\x85R" + kMember + "\x86R."s,
      "2" + good + kMember + "\x86R.",
      // Other ways to call getattr.
      kClass + kMember + "\x86\x81.", kClass + kMember + "\x86}\x92.",
      "0(cbuiltins\ngetattr\n" + kClass + kMember + "o.",
      "0(" + kClass + kMember + "ibuiltins\ngetattr\n.",
      // getattr is modified, or passed as an argument.
      "N"
      "b" +
          good + ".",
      "\x85" + good + ".", "q\x01h\x01\x86R.", "\x98" + good + "."};
  for (const std::string& bad : all) {
    const Trace trace = Follow(get + bad);
    ASSERT_FALSE(trace.faults.empty()) << bad;
    for (const NamedGlobal& global : trace.globals) {
      EXPECT_EQ(global.allowed, global.name != "getattr") << bad;
    }
    EXPECT_NE(trace.faults[0].message.find("getattr"), std::string::npos)
        << bad;
  }
  // The tuple is not checked before the name of the class is known.
  EXPECT_FALSE(Follow("\x80\x02" + kClass + kMember +
                      "\x86q\0"
                      "0cbuiltins\n"
                      "getattr\nh\0R."s)
                   .faults.empty());
}

// Each member exists once per process, and other code uses it.
TEST(PickleTracer, MembersAreNotChanged) {
  const std::string get =
      "\x80\x03"
      "cbuiltins\ngetattr\n";
  for (const std::string& member :
       {get + kClass + kMember + "\x86R", kClass + "K\0\x85R"s,
        kClass + "K\0\x85\x81"s, "(" + kClass + "K\0o"s,
        "(K\0i"s + kClass.substr(1)}) {
    EXPECT_THAT(Follow(member + ".").faults, IsEmpty()) << member;
    EXPECT_THAT(Follow(member + "}X\1\0\0\0aK\1sr\0\0\0\0b."s).faults,
                Not(IsEmpty()))
        << member;
    EXPECT_THAT(Follow(member + "q\1h\1}b.").faults, Not(IsEmpty())) << member;
    EXPECT_THAT(Follow(member + ")R.").faults, Not(IsEmpty())) << member;
  }
}

TEST(PickleTracer, ManyPairsBesideGetattrAreReadOnce) {
  std::string pickle =
      "\x80\x03"
      "cbuiltins\ngetattr\nq\0" +
      kClass + "q\1X\3\0\0\0mroq\2"s;
  for (int i = 0; i < 1'000'000; ++i)
    pickle +=
        "h\1h\2\x86"
        "0"s;
  pickle += ".";
  uint64_t reads = 0;
  const auto source = MakeFunctionSource(
      pickle.size(),
      [&](uint64_t offset, std::span<std::byte> out) {
        ++reads;
        std::memcpy(out.data(), pickle.data() + offset, out.size());
        return Status();
      },
      "pickle");
  const PickleNames names({});
  const auto trace = TracePickle(*source, 0, pickle.size(), {.names = &names});
  ASSERT_TRUE(trace.ok());
  EXPECT_THAT(trace->faults, Not(IsEmpty()));
  EXPECT_LT(reads, 100 + pickle.size() / 1024);
}

TEST(PickleTracer, TheNameMayBeAllowed) {
  const PickleNames names(std::vector<std::string>{"builtins.getattr"});
  const TraceOptions options{.names = &names};
  const std::string pickle =
      "\x80\x03"
      "cbuiltins\ngetattr\n)R.";
  EXPECT_THAT(TracePickle(*MakeMemorySource(std::as_bytes(std::span(pickle))),
                          0, pickle.size(), options)
                  ->faults,
              IsEmpty());
}

TEST(PickleTracer, AFrameThatIsTooLongEndsWithTheFile) {
  // The C unpickler refuses the frame. The Python one reads the bytes that
  // remain, and refuses an argument or a line that is not complete.
  const std::string frame = "\x95" + Little(1000, 8);
  EXPECT_THAT(Named(Follow(frame + "cos\nsystem\n.")),
              ElementsAre("os.system"));
  for (const std::string& rest :
       {"X\xff\0\0\0abc"s, "cos\nsystem"s, "cos"s, "K"s, "B\x01"s}) {
    const Trace trace = Follow(frame + rest);
    EXPECT_EQ(trace.end, TraceEnd::kCut) << rest;
    EXPECT_THAT(trace.faults, IsEmpty()) << rest;
    EXPECT_THAT(trace.globals, IsEmpty()) << rest;
  }
  // Both refuse a length with the highest bit set.
  const Trace trace =
      Follow("\x95" + Little(~uint64_t{0}, 8) + "cos\nsystem\n.");
  EXPECT_EQ(trace.end, TraceEnd::kBroken);
  EXPECT_THAT(trace.globals, IsEmpty());
}

// Once, each name was kept as often as it was named.
TEST(PickleTracer, KeepsLittleOfLongNames) {
  const std::string name(4'000, 'm');
  std::string pickle = "\x80\x04";
  for (const char number : {'\0', '\1'}) {
    pickle += std::string("X\xA0\x0F\0\0", 5) + name + "q" + number + "0";
  }
  for (int i = 0; i < 20'000; ++i)
    pickle += "h"s + '\0' +
              "h\x01\x93"
              "0";
  const Trace trace = Follow(pickle + "N.");
  EXPECT_EQ(trace.global_count, 20'000u);
  EXPECT_LT(trace.globals.size(), 2'100u);
}

TEST(PickleTracer, TakesNoMemoryForWhatIsClaimed) {
  for (const std::string& claim :
       {"\x8e"s + Little(uint64_t{1} << 62, 8), "B\xff\xff\xff\xff"s,
        "N\x72\xff\xff\xff\xff"s + "\x94N."}) {
    (void)Follow("\x80\x05" + claim);
  }
  // One mark and 20 million values.
  const std::string many = "(" + std::string(20'000'000, 'N') + "t.";
  EXPECT_EQ(Follow(many).end, TraceEnd::kUnclear);
  // 2.5 million tuples, each of which could be the shape of an array.
  std::string tuples =
      "\x80\x03"
      "cjoblib.numpy_pickle\nNumpyArrayWrapper\n";
  for (int i = 0; i < 2'500'000; ++i) tuples += ")0";
  EXPECT_EQ(Follow(tuples, {.arrays = true}).end, TraceEnd::kUnclear);
}

TEST(PickleTracer, FollowsPersistentIdsWhereAReaderResolvesThem) {
  EXPECT_EQ(Follow("\x80\x02K\x01Q.", {.persistent_ids = true}).end,
            TraceEnd::kStop);
}

}  // namespace
}  // namespace haulway::scan
