#include "testing/goldens.h"

#include <gtest/gtest.h>
#include <libdeflate.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

namespace haulway::test {

namespace {

namespace fs = std::filesystem;

constexpr size_t kLargestGolden = size_t{1} << 23;

fs::path Folder() { return HAULWAY_TESTDATA "/golden"; }

}  // namespace

std::string ReadGolden(const std::string& name) {
  const bool plain = fs::exists(Folder() / name);
  std::ifstream file(Folder() / (plain ? name : name + ".gz"),
                     std::ios::binary);
  const std::string stored(std::istreambuf_iterator<char>(file), {});
  if (plain) return stored;
  const std::unique_ptr<libdeflate_decompressor,
                        void (*)(libdeflate_decompressor*)>
      inflater(libdeflate_alloc_decompressor(), libdeflate_free_decompressor);
  std::string data(kLargestGolden, '\0');
  size_t size = 0;
  if (libdeflate_gzip_decompress(inflater.get(), stored.data(), stored.size(),
                                 data.data(), data.size(),
                                 &size) != LIBDEFLATE_SUCCESS) {
    return {};
  }
  data.resize(size);
  return data;
}

std::vector<std::string> GoldenNames(const std::string& ending) {
  std::vector<std::string> names;
  for (const auto& file : fs::recursive_directory_iterator(Folder())) {
    std::string name = file.path().lexically_relative(Folder());
    if (name.ends_with(".gz")) name.resize(name.size() - 3);
    if (name.ends_with(ending)) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  EXPECT_FALSE(names.empty()) << "there are no golden files of " << ending;
  return names;
}

}  // namespace haulway::test
