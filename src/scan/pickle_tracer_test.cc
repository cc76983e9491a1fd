#include "scan/pickle_tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  // The protocol counts that was named last.
  EXPECT_THAT(Named(Follow("\x80\x02\x80\x04"
                           "c__builtin__\nlist\n.")),
              ElementsAre("__builtin__.list"));
  EXPECT_EQ(Follow("\x80\x02"
                   "c__builtin__\nlist\n.")
                .globals[0]
                .written,
            "__builtin__.list");
}

// As pickle.dumps() writes 64 KiB and more at protocols 4 and 5.
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
  // Numbers of tensors begin like that.
  EXPECT_EQ(Follow("\x82\x05.").end, TraceEnd::kBroken);
}

TEST(PickleTracer, EndsWhereEveryUnpicklerFails) {
  for (const std::string& broken :
       {"\x80\x06N."s, "0."s, "."s, "e."s, "R."s, "h\x05."s, "Iword\n."s,
        "Sword\n."s, "\x8b\xff\xff\xff\xff."s, "\x97."s, "\xff"s, "P1\n."s,
        "class Reader:\n  pass\n"s, "{\"a\": 1}"s}) {
    const Trace trace = Follow(broken);
    EXPECT_EQ(trace.end, TraceEnd::kBroken) << broken;
    EXPECT_THAT(trace.globals, IsEmpty()) << broken;
  }
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
  // The unpickler in Python does.
  EXPECT_THAT(Named(Follow("cos\nsystemX")), ElementsAre("os.system"));
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
}

TEST(PickleTracer, FollowsPersistentIdsWhereAReaderResolvesThem) {
  EXPECT_EQ(Follow("\x80\x02K\x01Q.", {.persistent_ids = true}).end,
            TraceEnd::kStop);
}

}  // namespace
}  // namespace haulway::scan
