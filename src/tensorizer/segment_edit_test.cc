// Edits of files in segments: every kind, with one file and with two, and after
// interrupted edits.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/digest.h"
#include "haulway/tensorizer.h"
#include "io/editable_file.h"
#include "tensorizer/segment_head.h"
#include "tensorizer/segment_rows.h"
#include "tensorizer/segment_writer.h"
#include "tensorizer/tensorizer_reader.h"
#include "testing/segments_for_test.h"
#include "testing/tensorizer_goldens.h"

namespace haulway {
namespace {

using haulway::test::Assemble;
using haulway::test::FixedTensor;
using haulway::test::KeyA;
using haulway::test::SegmentContents;
using haulway::test::TensorizerFile;

struct Way {
  std::string name;
  SegmentRoom room = SegmentRoom::kAuto;
  bool two_files = false;
  bool encrypted = false;
};

class Edits : public ::testing::TestWithParam<Way> {
 protected:
  Edits() {
    std::string name = ::testing::TempDir() + "haulway-edit-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ + "/x.tensors";
    options_.durability = Durability::kNone;
    options_.room = GetParam().room;
    options_.threads = 1;
    if (GetParam().encrypted) options_.key.key = KeyA();
  }
  ~Edits() override { std::filesystem::remove_all(folder_); }

  void Write(std::vector<TensorizerInput> tensors, uint64_t room_for = 0) {
    TensorizerOptions options;
    options.layout = TensorizerLayout::kSegments;
    options.room_for = room_for;
    options.metadata = {{"a", "1"}};
    if (GetParam().two_files) options.data_file = "x.data";
    if (GetParam().encrypted) options.key = KeyA();
    const auto layout = LayOutTensorizer(tensors, options);
    ASSERT_TRUE(layout.ok()) << layout.status().message();
    const std::string file = Assemble(**layout);
    const uint64_t split =
        GetParam().two_files ? (*layout)->split() : file.size();
    Put(path_, file.substr(0, split));
    if (GetParam().two_files) Put(folder_ + "/x.data", file.substr(split));
  }

  static void Put(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }

  std::map<std::string, std::string> Contents() const {
    return SegmentContents(path_, options_.key);
  }

  TensorizerEditStats Edit(const TensorizerEdit& edit) {
    const auto stats = EditTensorizer(path_, edit, options_);
    EXPECT_TRUE(stats.ok()) << stats.status().message();
    return stats.ok() ? *stats : TensorizerEditStats();
  }

  std::string folder_;
  std::string path_;
  TensorizerEditOptions options_;
};

TensorizerRename Renamed(std::string from, std::string to) {
  return {std::move(from), {{false, 0, std::move(to)}}};
}

TEST_P(Edits, AppendRenameAndSet) {
  Write({FixedTensor("a", 5), FixedTensor("b", 300), FixedTensor("c", 0)});
  std::map<std::string, std::string> expected = Contents();
  ASSERT_EQ(expected.size(), 4u);
  for (int round = 0; round < 6; ++round) {
    TensorizerEdit edit;
    const std::string old_name =
        round == 0 ? "a" : fmt::format("a{}", round - 1);
    edit.rename.push_back(Renamed(old_name, fmt::format("a{}", round)));
    const std::string added = fmt::format("n{}", round);
    edit.append.push_back(FixedTensor(added, 1000 * round));
    edit.set = {{"round", std::to_string(round)}};
    if (round == 3) edit.unset = {"a"};
    const TensorizerEditStats stats = Edit(edit);
    EXPECT_EQ(stats.tensors, 4u + round);

    auto moved = expected.extract(old_name);
    moved.key() = fmt::format("a{}", round);
    expected.insert(std::move(moved));
    expected[added] = haulway::test::FixedBytesOf(added, 1000 * round);
    expected["#round"] = std::to_string(round);
    if (round == 3) expected.erase("#a");
    ASSERT_EQ(Contents(), expected) << "round " << round;
  }
}

TEST_P(Edits, AppendsUntilSegmentsMustGrow) {
  Write({FixedTensor("first", 7)});
  auto expected = Contents();
  uint64_t inserted = 0;
  bool moved = false;
  for (int i = 0; i < 40; ++i) {
    const std::string name =
        fmt::format("{}{}", std::string(500, 'x'), i);  // Soon too many to fit.
    TensorizerEdit edit;
    edit.append.push_back(FixedTensor(name, 64));
    const TensorizerEditStats stats = Edit(edit);
    inserted += stats.inserted_bytes;
    moved = moved || stats.moved;
    expected[name] = haulway::test::FixedBytesOf(name, 64);
    ASSERT_EQ(Contents(), expected) << i;
  }
  // Where the file system cannot insert blocks, every mode moves.
  EXPECT_EQ(moved, inserted == 0);
  EXPECT_TRUE(moved || GetParam().room != SegmentRoom::kMove);
}

TEST_P(Edits, RefuseWhatNoReaderTakesAndLeaveTheFile) {
  Write({FixedTensor("a", 5), FixedTensor("b", 6)});
  const auto expected = Contents();
  const auto code = [&](const TensorizerEdit& edit) {
    return EditTensorizer(path_, edit, options_).status().code();
  };
  TensorizerEdit edit;
  edit.append = {FixedTensor("a", 1)};
  EXPECT_EQ(code(edit), Code::kInvalidArgument);
  edit = {};
  edit.rename = {Renamed("z", "y")};
  EXPECT_EQ(code(edit), Code::kNotFound);
  edit.rename = {Renamed("a", "b")};
  EXPECT_EQ(code(edit), Code::kInvalidArgument);
  edit.rename = {Renamed("a", "c"), Renamed("a", "d")};
  EXPECT_EQ(code(edit), Code::kInvalidArgument);
  edit = {};
  edit.set = {{"", "x"}};
  EXPECT_EQ(code(edit), Code::kInvalidArgument);
  edit.set = {{"k", "\xFF"}};
  EXPECT_EQ(code(edit), Code::kInvalidArgument);
  if (GetParam().encrypted) {
    options_.key.key = Secret(std::array<std::byte, 32>{});
    edit = {};
    edit.append = {FixedTensor("n", 4)};
    EXPECT_EQ(code(edit), Code::kAuth);
    options_.key = {};
    EXPECT_EQ(code(edit), Code::kAuth);
    options_.key.key = KeyA();
  }
  EXPECT_EQ(Contents(), expected);
  // Swapping names is not a conflict.
  edit = {};
  edit.rename = {Renamed("a", "b"), Renamed("b", "a")};
  EXPECT_EQ(code(edit), Code::kOk);
  EXPECT_EQ(Contents().at("b"), expected.at("a"));
}

TEST_P(Edits, DoNotRenameWhatIsBroken) {
  Write({FixedTensor("a", 50), FixedTensor("b", 6)});
  const auto reader = tensorizer::Reader::Open(*OpenFileSource(path_), {});
  ASSERT_TRUE(reader.ok());
  const std::string data = GetParam().two_files ? folder_ + "/x.data" : path_;
  const uint64_t at = (*reader)->preamble().segments->data.start + 3;
  {
    std::fstream file(data, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.put('!');
  }
  TensorizerEdit edit;
  edit.rename = {Renamed("a", "z")};
  const Status status = EditTensorizer(path_, edit, options_).status();
  EXPECT_EQ(status.code(),
            GetParam().encrypted ? Code::kAuth : Code::kMismatch);
  edit.rename = {Renamed("b", "z")};
  EXPECT_TRUE(EditTensorizer(path_, edit, options_).ok());
}

TEST_P(Edits, WriteLittleMoreThanTheTensor) {
  Write({FixedTensor("a", 5)}, 4);
  TensorizerEdit edit;
  edit.append = {FixedTensor("n", 8000)};
  const TensorizerEditStats stats = Edit(edit);
  EXPECT_LT(stats.written_bytes, 2u * 8000);
  EXPECT_FALSE(stats.moved);
  EXPECT_EQ(stats.inserted_bytes, 0u);
}

TEST_P(Edits, AreForOneAtATime) {
  Write({FixedTensor("a", 5)});
  const auto held = EditableFile::Open(path_, Durability::kNone);
  ASSERT_TRUE(held.ok());
  TensorizerEdit edit;
  edit.set = {{"k", "v"}};
  EXPECT_EQ(EditTensorizer(path_, edit, options_).status().code(),
            Code::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, Edits,
    ::testing::Values(Way{"Auto"}, Way{"Move", SegmentRoom::kMove},
                      Way{"TwoFiles", SegmentRoom::kAuto, true},
                      Way{"TwoFilesMove", SegmentRoom::kMove, true},
                      Way{"Encrypted", SegmentRoom::kAuto, false, true},
                      Way{"EncryptedTwo", SegmentRoom::kMove, true, true}),
    [](const auto& info) { return info.param.name; });

// Creates the states that an edit leaves when it is killed at the worst
// moments.
class Interrupted : public ::testing::Test {
 protected:
  Interrupted() {
    std::string name = ::testing::TempDir() + "haulway-edit-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ + "/x.tensors";
  }
  ~Interrupted() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
  std::string path_;
};

TEST_F(Interrupted, GrowthIsSettledByTheSizeOfTheFile) {
  TensorizerOptions options;
  options.layout = TensorizerLayout::kSegments;
  options.room_for = 0;
  const std::vector<TensorizerInput> tensors = {FixedTensor("a", 5),
                                                FixedTensor("b", 600)};
  const auto layout = LayOutTensorizer(tensors, options);
  ASSERT_TRUE(layout.ok());
  const std::string file = Assemble(**layout);
  const auto reader = tensorizer::Reader::Open(
      MakeMemorySource(std::as_bytes(std::span(file))), {});
  ASSERT_TRUE(reader.ok());
  tensorizer::Preamble preamble = (*reader)->preamble();
  const uint64_t starts[] = {preamble.segments->index.end,
                             preamble.segments->data.start};
  for (const uint64_t at : starts) {
    preamble.segments->growth = {at, 8192, file.size()};
    const auto head = tensorizer::EncodeHead(preamble);
    std::string before = file;
    std::memcpy(before.data(), head.data(), head.size());
    std::string after = before;
    after.insert(at, std::string(8192, '\0'));
    std::string neither = before + "x";
    std::ofstream(path_, std::ios::binary) << file;
    const auto expected = SegmentContents(path_, {});
    for (const std::string& state : {before, after}) {
      std::ofstream(path_, std::ios::binary) << state;
      EXPECT_EQ(SegmentContents(path_, {}), expected);
      // A new edit continues from there.
      TensorizerEdit edit;
      edit.append = {FixedTensor("n", 9000)};
      const auto stats = EditTensorizer(path_, edit, {});
      ASSERT_TRUE(stats.ok()) << stats.status().message();
      auto more = expected;
      more["n"] = haulway::test::FixedBytesOf("n", 9000);
      EXPECT_EQ(SegmentContents(path_, {}), more);
    }
    const auto wrong = tensorizer::Reader::Open(
        MakeMemorySource(std::as_bytes(std::span(neither))), {});
    EXPECT_EQ(wrong.status().code(), Code::kCorrupt);
  }
}

TEST_F(Interrupted, FilesByPr170AreEditedToo) {
  for (const std::string name :
       {"pr170_f32", "pr170_key", "pr170_key_meta", "pr170_max_tensors",
        "pr170_meta", "pr170_zero_bf16"}) {
    std::ofstream(path_, std::ios::binary) << TensorizerFile(name);
    TensorizerEditOptions options;
    options.durability = Durability::kNone;
    if (name.find("key") != name.npos) options.key.key = KeyA();
    auto expected = SegmentContents(path_, options.key);
    const auto version_1 = [&] {
      const auto reader = tensorizer::Reader::Open(*OpenFileSource(path_), {});
      EXPECT_TRUE(reader.ok()) << reader.status().message();
      return reader.ok() && !(*reader)->preamble().segments.has_value();
    };
    TensorizerEdit edit;
    edit.append = {FixedTensor("n", 900)};
    ASSERT_TRUE(EditTensorizer(path_, edit, options).ok());
    expected["n"] = haulway::test::FixedBytesOf("n", 900);
    EXPECT_EQ(SegmentContents(path_, options.key), expected) << name;
    EXPECT_TRUE(version_1());

    edit = {};
    edit.rename = {Renamed("n", "o")};
    edit.append = {FixedTensor("p", 10)};
    edit.set = {{"k", "v"}};
    const auto stats = EditTensorizer(path_, edit, options);
    ASSERT_TRUE(stats.ok()) << stats.status().message();
    auto moved = expected.extract("n");
    moved.key() = "o";
    expected.insert(std::move(moved));
    expected["p"] = haulway::test::FixedBytesOf("p", 10);
    expected["#k"] = "v";
    EXPECT_EQ(SegmentContents(path_, options.key), expected) << name;
    EXPECT_FALSE(version_1());
  }
}

TEST_F(Interrupted, OtherLayoutsAreLeftAlone) {
  std::ofstream(path_, std::ios::binary) << TensorizerFile("2.11.1_v1_f32");
  TensorizerEdit edit;
  edit.set = {{"k", "v"}};
  const Status status = EditTensorizer(path_, edit, {}).status();
  EXPECT_EQ(status.code(), Code::kUnsupported) << status.message();
  EXPECT_EQ(EditTensorizer(path_ + "-", edit, {}).status().code(),
            Code::kNotFound);
}

// Appends to a file with 4 GiB of holes before the last tensor. The bytes
// written are the tensor, its header, and little else.
TEST_F(Interrupted, AppendToALargeFileWritesLittle) {
  constexpr uint64_t kLarge = uint64_t{4} << 30;
  TensorizerOptions options;
  options.layout = TensorizerLayout::kSegments;
  options.room_for = 0;
  std::vector<TensorizerInput> tensors;
  for (int i = 0; i < 4000; ++i) {
    tensors.push_back(FixedTensor(fmt::format("layer.{}.weight", i), 8));
  }
  const auto layout = LayOutTensorizer(tensors, options);
  ASSERT_TRUE(layout.ok());
  std::ofstream(path_, std::ios::binary) << Assemble(**layout);
  {
    const auto reader = tensorizer::Reader::Open(*OpenFileSource(path_), {});
    ASSERT_TRUE(reader.ok());
    std::vector<tensorizer::SegmentRow> rows;
    for (uint32_t row = 0; row < tensors.size(); ++row) {
      rows.push_back(*tensorizer::ReadSegmentRow(**reader, row));
    }
    rows.back().data_offset += kLarge;
    const auto encoded = tensorizer::EncodeRows(rows, /*tagged=*/false);
    tensorizer::Preamble preamble = (*reader)->preamble();
    tensorizer::SegmentHead& head = *preamble.segments;
    head.index.crc32 = Crc32(0, encoded.index);
    head.data.data_length += kLarge;
    head.data.end += kLarge;
    const auto file = EditableFile::Open(path_, Durability::kNone);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->WriteAt(head.index.start, encoded.index).ok());
    ASSERT_TRUE((*file)
                    ->WriteAt(head.data.start + rows.back().data_offset,
                              std::span(tensors.back().bytes, 8))
                    .ok());
    ASSERT_TRUE((*file)->WriteAt(0, tensorizer::EncodeHead(preamble)).ok());
    ASSERT_TRUE((*file)->Truncate(head.data.end).ok());
  }
  auto expected = SegmentContents(path_, {});
  ASSERT_EQ(expected.size(), 4000u);
  for (const uint64_t bytes : {3000, 100000, 3000000}) {
    const std::string name = fmt::format("n{}", bytes);
    const uint64_t large = std::filesystem::file_size(path_);
    TensorizerEdit edit;
    edit.append = {FixedTensor(name, bytes)};
    const auto stats = EditTensorizer(path_, edit, {});
    ASSERT_TRUE(stats.ok()) << stats.status().message();
    constexpr uint64_t kHeader = 76;
    fmt::print(
        "append of {} bytes to {} in 4000 tensors: {} bytes written, "
        "{} inserted\n",
        bytes, large, stats->written_bytes, stats->inserted_bytes);
    EXPECT_LT(stats->written_bytes, 2 * (bytes + kHeader));
    expected[name] = haulway::test::FixedBytesOf(name, bytes);
    EXPECT_EQ(SegmentContents(path_, {}), expected);
  }
}

}  // namespace
}  // namespace haulway
