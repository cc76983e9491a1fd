// Tests every checkpoint of testdata/golden/ against the tensors that PyTorch
// found in it: NAME.json, written by tools/make_goldens.py, has a line for each
// tensor.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "haulway/checkpoint.h"
#include "haulway/verify.h"
#include "testing/goldens.h"

namespace haulway {
namespace {

namespace fs = std::filesystem;

const fs::path kGoldens = HAULWAY_TESTDATA "/golden";

std::string Unpacked(const std::string& name) {
  return test::ReadGolden(name + ".pt");
}

std::vector<std::string> Lines(const std::string& name) {
  std::ifstream file(kGoldens / (name + ".json"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with(',')) line.pop_back();
    lines.push_back(line);
  }
  return lines;
}

// Returns the lines that begin with `start`, each cut at `end` if that occurs.
std::vector<std::string> LinesOf(const std::string& name,
                                 std::string_view start, std::string_view end) {
  std::vector<std::string> found;
  for (const std::string& line : Lines(name)) {
    if (line.starts_with(start))
      found.push_back(line.substr(0, line.find(end)));
  }
  return found;
}

std::string Json(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string Join(std::span<const int64_t> numbers) {
  return fmt::format("[{}]", fmt::join(numbers, ","));
}

// Returns the beginning of the tensor's line in the JSON file.
Result<std::string> Describe(const Checkpoint& checkpoint, const Entry& entry,
                             uint32_t storage) {
  constexpr std::string_view kKinds[] = {"dense", "meta", "storage"};
  const TensorInfo& tensor = checkpoint.index().tensors[entry.tensor];
  const bool has_data = tensor.storage != kNoStorage;
  std::string crc = "null";
  if (has_data) {
    std::vector<std::byte> bytes(tensor.nbytes);
    HAULWAY_TRY(checkpoint.Read(tensor, bytes));
    crc = fmt::format("{}", Crc32(0, bytes));
  }
  return fmt::format(
      R"({{"name":{},"kind":"{}","dtype":"{}","shape":{},"strides":{},)"
      R"("storage_offset":{},"storage":{},"requires_grad":{},"conj":{},)"
      R"("neg":{},"crc32":{},)",
      Json(entry.name), kKinds[static_cast<int>(tensor.kind)],
      Name(tensor.dtype), Join(tensor.shape), Join(tensor.strides),
      tensor.storage_offset, has_data ? fmt::format("{}", storage) : "null",
      tensor.requires_grad, tensor.conjugate, tensor.negative, crc);
}

Result<std::vector<std::string>> DescribeAll(const Checkpoint& checkpoint) {
  std::vector<std::string> lines;
  std::map<uint32_t, uint32_t> numbers;  // Storages, numbered as they are met.
  for (const Entry& entry : checkpoint.entries()) {
    const uint32_t row = checkpoint.index().tensors[entry.tensor].storage;
    const auto number = static_cast<uint32_t>(numbers.size());
    const uint32_t storage =
        row == kNoStorage ? 0 : numbers.try_emplace(row, number).first->second;
    HAULWAY_ASSIGN(std::string line, Describe(checkpoint, entry, storage));
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string Text(const FactValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    return text->empty() ? "null" : Json(*text);
  }
  if (const auto* n = std::get_if<int64_t>(&value)) {
    return Json(fmt::format("{}", *n));
  }
  if (const auto* n = std::get_if<uint64_t>(&value)) {
    return Json(fmt::format("{}", *n));
  }
  return "null";
}

std::vector<std::string> Goldens() {
  std::vector<std::string> names;
  for (const auto& file : fs::directory_iterator(kGoldens)) {
    if (file.path().extension() == ".json") names.push_back(file.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class Golden : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    data_ = Unpacked(GetParam());
    ASSERT_FALSE(data_.empty());
    source_ = MakeMemorySource(std::as_bytes(std::span(data_)));
  }

  std::string data_;
  std::shared_ptr<const ByteSource> source_;
};

TEST_P(Golden, HasTheTensorsThatTorchFinds) {
  const auto checkpoint = Checkpoint::Open(source_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const auto lines = DescribeAll(**checkpoint);
  ASSERT_TRUE(lines.ok()) << lines.status().message();
  EXPECT_EQ(*lines, LinesOf(GetParam(), "{\"name\"", "\"sha256\""));
}

TEST_P(Golden, IsTheSameWhenOpenedLeniently) {
  const auto strict = Checkpoint::Open(source_);
  OpenOptions options;
  options.strictness = Strictness::kLenient;
  const auto lenient = Checkpoint::Open(source_, options);
  ASSERT_TRUE(strict.ok()) << strict.status().message();
  ASSERT_TRUE(lenient.ok()) << lenient.status().message();
  EXPECT_EQ(*DescribeAll(**lenient), *DescribeAll(**strict));
}

TEST_P(Golden, HasTheFactsOfItsContainer) {
  const auto checkpoint = Checkpoint::Open(source_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(
      LinesOf(GetParam(), " \"format\"", "\n").at(0),
      fmt::format(R"( "format": "{}")", Name((*checkpoint)->index().format)));
  const std::vector<std::string> lines = LinesOf(GetParam(), "  \"", "\n");
  size_t met = 0;
  for (const Fact& fact : (*checkpoint)->index().facts) {
    const std::string start = fmt::format("  \"{}\": ", fact.name);
    for (const std::string& line : lines) {
      if (!line.starts_with(start)) continue;
      EXPECT_EQ(line, start + Text(fact.value));
      ++met;
    }
  }
  EXPECT_EQ(met, lines.size()) << "every fact of the container is reported";
}

TEST_P(Golden, PassesVerify) {
  const auto verified = Verify(source_);
  ASSERT_TRUE(verified.ok()) << verified.status().message();
  EXPECT_TRUE(verified->ok) << verified->findings.at(0).message;
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(Goldens()),
                         [](const auto& info) { return info.param; });

TEST(Goldens, AreThere) { EXPECT_GE(Goldens().size(), 50u); }

}  // namespace
}  // namespace haulway
