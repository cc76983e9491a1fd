// Tests every file of testdata/dangerous_pickles/ against its line in the
// manifest.

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "haulway/status.h"
#include "haulway/tree.h"
#include "pickle/pickle_vm.h"

namespace haulway {
namespace {

struct Case {
  std::string file;
  std::string kind;
  std::string code;
  std::string message;
  std::string pickle;
};

std::vector<Case> Manifest() {
  const std::string folder = HAULWAY_TESTDATA "/dangerous_pickles/";
  std::vector<Case> cases;
  std::ifstream manifest(folder + "manifest.tsv");
  for (std::string line; std::getline(manifest, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream fields(line);
    Case one;
    std::getline(fields, one.file, '\t');
    std::getline(fields, one.kind, '\t');
    std::getline(fields, one.code, '\t');
    std::getline(fields, one.message, '\t');
    std::ifstream pickle(folder + one.file, std::ios::binary);
    one.pickle.assign(std::istreambuf_iterator<char>(pickle), {});
    cases.push_back(one);
  }
  return cases;
}

TEST(DangerousPickles, AreThere) { EXPECT_GE(Manifest().size(), 60U); }

TEST(DangerousPickles, EachIsRefusedForItsReason) {
  for (const Case& one : Manifest()) {
    TreeArena arena;
    const auto result =
        ParsePickle(std::as_bytes(std::span(one.pickle)), arena);
    ASSERT_FALSE(result.ok()) << one.file;
    const Status& status = result.status();
    EXPECT_EQ(CodeName(status.code()), one.code)
        << one.file << " says: " << status.message();
    EXPECT_NE(status.message().find(one.message), std::string_view::npos)
        << one.file << " says: " << status.message();
    EXPECT_TRUE(status.byte().has_value()) << one.file;
  }
}

// A scan must report the name, whatever follows it.
TEST(DangerousPickles, EachIsSeenByAScan) {
  PickleOptions options;
  options.scan = true;
  for (const Case& one : Manifest()) {
    TreeArena arena;
    const auto result =
        ParsePickle(std::as_bytes(std::span(one.pickle)), arena, options);
    ASSERT_TRUE(result.ok()) << one.file << ": " << result.status().message();
    EXPECT_FALSE(result->findings.empty()) << one.file;
    if (one.kind != "live") continue;
    bool named = false;
    for (const GlobalMention& mention : result->mentions) {
      const std::string full = std::string(mention.global->module) + "." +
                               std::string(mention.global->name);
      named = named || (!mention.global->allowed && full == one.message);
    }
    EXPECT_TRUE(named) << one.file << " names " << one.message;
  }
}

}  // namespace
}  // namespace haulway
