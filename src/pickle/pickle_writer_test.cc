#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "haulway/pickle.h"
#include "pickle/pickle_python2.h"
#include "pickle/pickle_vm.h"
#include "pickle/torch_pickles_for_test.h"
#include "testing/shorthands.h"
#include "testing/tree_equality.h"

namespace haulway {
namespace {

using std::string_literals::operator""s;
using std::string_view_literals::operator""sv;

// Returns the bytes between PROTO 2 and STOP.
template <class Write>
std::string Body(const Write& write) {
  PickleWriter writer;
  write(writer);
  const std::string pickle = writer.Finish();
  EXPECT_EQ(pickle.substr(0, 2), "\x80\x02");
  EXPECT_EQ(pickle.back(), '.');
  return pickle.substr(2, pickle.size() - 3);
}

std::string BodyOfInt(int64_t value) {
  return Body([&](PickleWriter& writer) { writer.Int(value); });
}

TEST(PickleWriter, WritesIntegersInTheirShortestForm) {
  EXPECT_EQ(BodyOfInt(0), "K\0"s);
  EXPECT_EQ(BodyOfInt(255), "K\xff");
  EXPECT_EQ(BodyOfInt(256), "M\0\1"s);
  EXPECT_EQ(BodyOfInt(65535), "M\xff\xff");
  EXPECT_EQ(BodyOfInt(65536), "J\0\0\1\0"s);
  EXPECT_EQ(BodyOfInt(-1), "J\xff\xff\xff\xff");
  EXPECT_EQ(BodyOfInt(INT32_MAX), "J\xff\xff\xff\x7f");
  EXPECT_EQ(BodyOfInt(INT32_MIN), "J\0\0\0\x80"s);
  EXPECT_EQ(BodyOfInt(int64_t{1} << 31), "\x8a\5\0\0\0\x80\0"s);
  EXPECT_EQ(BodyOfInt(int64_t{INT32_MIN} - 1), "\x8a\5\xff\xff\xff\x7f\xff");
  EXPECT_EQ(BodyOfInt(INT64_MIN), "\x8a\x08\0\0\0\0\0\0\0\x80"s);
}

TEST(PickleWriter, WritesBigIntegersWithoutIdleBytes) {
  const auto body = [](std::string_view bytes) {
    return Body([&](PickleWriter& writer) { writer.BigInt(bytes); });
  };
  EXPECT_EQ(body(""), "K\0"s);
  EXPECT_EQ(body("\x05\0\0\0\0\0\0\0\0\0"sv), "K\5");
  EXPECT_EQ(body("\xff\xff\xff\xff\xff\xff\xff\xff\xff"), "J\xff\xff\xff\xff");
  EXPECT_EQ(body("\0\0\0\0\0\0\0\0\x80\0\0"sv),
            "\x8a\x0a\0\0\0\0\0\0\0\0\x80\0"s);
  EXPECT_EQ(body(std::string(255, '\1')), "\x8a\xff" + std::string(255, '\1'));
  EXPECT_EQ(body(std::string(256, '\1')),
            "\x8b\0\1\0\0"s + std::string(256, '\1'));
}

TEST(PickleWriter, NumbersTheMemoInOneByteThenInFour) {
  PickleWriter writer;
  const std::string objects(300, 'x');
  for (const char& object : objects) {
    writer.None();
    writer.Put(&object);
  }
  EXPECT_TRUE(writer.Get(&objects[255]));
  EXPECT_TRUE(writer.Get(&objects[256]));
  EXPECT_FALSE(writer.Get(&writer));
  const std::string pickle = writer.Finish();
  EXPECT_THAT(pickle, ::testing::EndsWith("h\xffj\0\1\0\0."s));
  EXPECT_THAT(pickle, ::testing::HasSubstr("Nq\xffNr\0\1\0\0"s));
}

TEST(PickleWriter, WritesGlobalsByTheirPython2Names) {
  const auto body = [](std::string_view module, std::string_view name) {
    return Body([&](PickleWriter& writer) { writer.Global(module, name); });
  };
  EXPECT_EQ(body("builtins", "set"), "c__builtin__\nset\n");
  EXPECT_EQ(body("builtins", "range"), "c__builtin__\nxrange\n");
  EXPECT_EQ(body("builtins", "zip"), "citertools\nizip\n");
  EXPECT_EQ(body("builtins", "KeyError"), "cexceptions\nKeyError\n");
  EXPECT_EQ(body("builtins", "TimeoutError"), "cexceptions\nOSError\n");
  EXPECT_EQ(body("copyreg", "_reconstructor"), "ccopy_reg\n_reconstructor\n");
  EXPECT_EQ(body("torch._utils", "_rebuild_tensor_v2"),
            "ctorch._utils\n_rebuild_tensor_v2\n");
}

TEST(PickleWriter, GrowsForLongTextAndManyOpcodes) {
  const std::string text(100'000, 'a');
  const std::string body = Body([&](PickleWriter& writer) {
    writer.Unicode(text);
    for (int i = 0; i < 100'000; ++i) writer.None();
    writer.Float(1.5);
  });
  EXPECT_EQ(body, "X\xa0\x86\1\0"s + text + std::string(100'000, 'N') +
                      "G\x3f\xf8\0\0\0\0\0\0"s);
}

// A tree and the pickle that it refers to.
struct Tree {
  explicit Tree(std::string pickle)
      : bytes(std::move(pickle)),
        result(ParsePickle(std::as_bytes(std::span(bytes)), arena)) {}
  const Value& root() const { return result.value().root; }

  std::string bytes;
  TreeArena arena;
  Result<PickleResult> result;
};

// Parses `pickle`, writes the tree, and checks that both trees are equal.
std::string Rewrite(const std::string& pickle) {
  const Tree tree(pickle);
  EXPECT_EQ(tree.result.status().message(), "");
  if (!tree.result.ok()) return "";
  const auto written = WritePickle(tree.root());
  EXPECT_EQ(written.status().message(), "");
  if (!written.ok()) return "";
  const Tree again(written.value());
  EXPECT_EQ(again.result.status().message(), "");
  EXPECT_TRUE(test::TreeComparer().Same(tree.root(), again.root()));
  return written.value();
}

TEST(WritePickle, GivesTheBytesOfTorchSaveBack) {
  for (const std::string_view hex :
       {pickle::kStateDictHex, pickle::kMixedHex}) {
    const std::string pickle = test::FromHex(hex);
    EXPECT_EQ(Rewrite(pickle), pickle);
  }
}

TEST(WritePickle, KeepsCycles) {
  // l = []; l.append(l)
  EXPECT_EQ(Rewrite("\x80\2]q\0h\0a."s), "\x80\2]q\0h\0a."s);
  // t = ([],); t[0].append(t), as CPython writes it.
  const std::string tuple = "\x80\2]q\0h\0\x85q\1a0h\1."s;
  EXPECT_EQ(Rewrite(tuple), tuple);
  const std::string wide = "\x80\2(]q\0(h\0NNNtq\1aNNN1h\1."s;
  EXPECT_EQ(Rewrite(wide), wide);
}

TEST(WritePickle, WritesBatchesAsPythonDoes) {
  const auto list = [](size_t count) {
    return Rewrite("\x80\2]q\0("s + std::string(count, 'N') + "e.");
  };
  EXPECT_EQ(list(0), "\x80\2]q\0."s);
  EXPECT_EQ(list(1), "\x80\2]q\0Na."s);
  EXPECT_EQ(list(1000), "\x80\2]q\0("s + std::string(1000, 'N') + "e.");
  EXPECT_EQ(list(1001), "\x80\2]q\0("s + std::string(1000, 'N') + "e(Ne.");

  const auto dict = [](size_t count, const std::string& start) {
    std::string items;
    for (size_t i = 0; i < count; ++i) {
      items += 'J';
      for (int byte = 0; byte < 4; ++byte) {
        items += static_cast<char>((i + 65536) >> (8 * byte));
      }
      items += 'N';
    }
    const std::string written = Rewrite("\x80\2" + start + "(" + items + "u.");
    // Compare only how the items are grouped.
    return written.substr(2 + start.size(), 1) + "..." +
           written.substr(written.size() - 5);
  };
  const std::string plain = "}q\0"s;
  EXPECT_THAT(dict(1, plain), ::testing::EndsWith("Ns."));
  EXPECT_THAT(dict(1000, plain), ::testing::EndsWith("Nu(u."));
  EXPECT_THAT(dict(1001, plain), ::testing::EndsWith("Nu."));
  const std::string ordered = "ccollections\nOrderedDict\nq\0)Rq\1"s;
  EXPECT_THAT(dict(1000, ordered), ::testing::EndsWith("Nu."));
  EXPECT_THAT(dict(1001, ordered), ::testing::EndsWith("Ns."));
}

TEST(WritePickle, RefusesWhatIsTooDeep) {
  TreeArena arena;
  Value deep;
  for (int i = 0; i < 1001; ++i) {
    auto* list = arena.New<Sequence>();
    list->data = arena.New<Value>();
    *list->data = deep;
    list->size = list->capacity = 1;
    deep = Value::Of(Kind::kList, list);
  }
  EXPECT_EQ(WritePickle(deep).status().message(),
            "tree to write is 1001 deep: more than max_depth = 1000");
  EXPECT_TRUE(WritePickle(deep.sequence().data[0]).ok());
}

TEST(WritePickle, RefusesACounterThatHoldsItself) {
  const Tree tree("\x80\2ccollections\nCounter\n)Rq\0Nh\0s."s);
  ASSERT_TRUE(tree.result.ok());
  EXPECT_EQ(WritePickle(tree.root()).status().code(), Code::kLimit);
}

// pickle.dumps(["a", b"xy", frozenset([2])], 4)
TEST(PickleWriter, WritesAShortFrame) {
  PickleWriter writer(4);
  writer.EmptyList();
  writer.PutUnshared();
  writer.Mark();
  writer.Unicode("a");
  writer.PutUnshared();
  writer.Binary("xy");
  writer.PutUnshared();
  writer.BeginMarked();
  writer.Int(2);
  writer.FrozenSet();
  writer.PutUnshared();
  writer.Appends();
  EXPECT_EQ(writer.Finish(),
            test::FromHex("80049513000000000000005d94288c016194430278"
                          "7994284b029194652e"));
}

// pickle.dumps([bytearray(b"q"), bytes(70000)], 5): long bytes are written
// between frames.
TEST(PickleWriter, WritesLongBytesBetweenFrames) {
  PickleWriter writer(5);
  writer.EmptyList();
  writer.PutUnshared();
  writer.Mark();
  writer.ByteArray("q");
  writer.PutUnshared();
  writer.Binary(std::string(70'000, '\0'));
  writer.PutUnshared();
  writer.Appends();
  EXPECT_EQ(writer.Finish(),
            test::FromHex("8005950e000000000000005d94289601000000000000007194"
                          "4270110100") +
                std::string(70'000, '\0') + test::FromHex("94652e"));
}

// A frame ends at the start of an object once it has 64 KiB, and a frame of
// fewer than four bytes has no head.
TEST(PickleWriter, EndsFramesWhereObjectsBegin) {
  for (const size_t count : {65'534u, 65'535u, 65'536u, 65'537u, 65'540u}) {
    SCOPED_TRACE(count);
    PickleWriter writer(4);
    for (size_t i = 0; i < count; ++i) writer.None();
    const std::string pickle = writer.Finish();
    const size_t first = std::min<size_t>(count, 65'536);
    const size_t rest = count - first + 1;  // With STOP.
    const size_t heads = count <= 65'536 ? 9 : rest < 4 ? 9 : 18;
    EXPECT_EQ(pickle.size(), 2 + heads + count + 1);
  }
}

TEST(WritePickle, WritesTheReplacementOfAnObject) {
  const std::string pickle = test::FromHex(pickle::kStateDictHex);
  const Tree tree(pickle);
  TreeArena arena;
  PickleWriteOptions options;
  options.replace = [&](const Value& value) -> std::optional<Value> {
    if (!value.is(Kind::kPersistent)) return std::nullopt;
    const auto id = value.persistent_id().sequence().items();
    auto* other = arena.New<Sequence>();
    other->data = static_cast<Value*>(arena.Allocate(5 * sizeof(Value)));
    std::copy(id.begin(), id.end(), other->data);
    other->data[2] = Value::Text(Kind::kString, "seven");
    other->size = other->capacity = 5;
    auto* row = arena.New<Sequence>();
    row->data = arena.New<Value>();
    *row->data = Value::Of(Kind::kTuple, other);
    row->size = row->capacity = 1;
    return Value::Of(Kind::kPersistent, row);
  };
  const auto written = WritePickle(tree.root(), options);
  ASSERT_TRUE(written.ok());
  EXPECT_THAT(written.value(), ::testing::HasSubstr("X\5\0\0\0seven"s));
}

}  // namespace
}  // namespace haulway
