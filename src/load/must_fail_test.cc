// Tests every file of testdata/must_fail/ against its line in the manifest.

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/load.h"
#include "haulway/verify.h"

namespace haulway {
namespace {

struct Case {
  std::string file;
  std::string rule;
  std::string code;
  std::string message;
};

std::vector<Case> Manifest() {
  std::vector<Case> cases;
  std::ifstream manifest(HAULWAY_TESTDATA "/must_fail/manifest.tsv");
  for (std::string line; std::getline(manifest, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream fields(line);
    Case one;
    std::getline(fields, one.file, '\t');
    std::getline(fields, one.rule, '\t');
    std::getline(fields, one.code, '\t');
    std::getline(fields, one.message, '\t');
    cases.push_back(one);
  }
  return cases;
}

// Returns the first error that a user sees: from opening, from making the
// object, from loading with all checks, or else the first finding of Verify().
Status FirstFault(const std::string& path) {
  HAULWAY_ASSIGN(const auto source, OpenFileSource(path));
  HAULWAY_ASSIGN(const auto checkpoint, Checkpoint::Open(source));
  HAULWAY_TRY(checkpoint->index().object_status);
  std::vector<uint32_t> rows(checkpoint->index().storages.size());
  std::iota(rows.begin(), rows.end(), 0);
  HAULWAY_TRY(
      LoadStorages(*checkpoint, rows, {.threads = 1, .verify = true}).status());
  HAULWAY_ASSIGN(const VerifyReport report, Verify(source));
  if (report.findings.empty()) return Status();
  return Status(report.findings[0].code, report.findings[0].message);
}

TEST(MustFail, TheManifestIsThere) { EXPECT_GT(Manifest().size(), 90u); }

TEST(MustFail, EachFileIsRefusedForItsReason) {
  for (const Case& one : Manifest()) {
    const Status fault = FirstFault(HAULWAY_TESTDATA "/must_fail/" + one.file);
    EXPECT_EQ(CodeName(fault.code()), one.code)
        << one.file << " (" << one.rule << "): " << fault.message();
    EXPECT_NE(fault.message().find(one.message), std::string_view::npos)
        << one.file << " (" << one.rule << ") says: " << fault.message();
  }
}

TEST(MustFail, VerifyFindsWhatOpeningRefuses) {
  for (const Case& one : Manifest()) {
    const std::string path = HAULWAY_TESTDATA "/must_fail/" + one.file;
    const auto report = Verify(*OpenFileSource(path));
    if (!report.ok()) {
      EXPECT_EQ(CodeName(report.status().code()), one.code) << one.file;
      continue;
    }
    // Forbidden content is not damage.
    const auto opened = Checkpoint::Open(*OpenFileSource(path));
    const bool is_opaque =
        opened.ok() && !(*opened)->index().object_status.ok();
    EXPECT_EQ(report->ok, one.code == "kOk" || is_opaque) << one.file;
    EXPECT_EQ(report->findings.empty(), report->ok) << one.file;
  }
}

// A file that asks to run code can still be read as data.
TEST(MustFail, WhatIsNotAllowedCanBeListed) {
  int opened = 0;
  for (const Case& one : Manifest()) {
    if (one.rule != "P03" || one.file == "before_it_breaks.pt") continue;
    const auto checkpoint = Checkpoint::Open(
        *OpenFileSource(HAULWAY_TESTDATA "/must_fail/" + one.file));
    ASSERT_TRUE(checkpoint.ok()) << one.file << checkpoint.status().message();
    const Status& status = (*checkpoint)->index().object_status;
    EXPECT_EQ(status.code(), Code::kUnsafe) << one.file;
    EXPECT_NE(status.message().find("; in "), std::string_view::npos);
    EXPECT_NE(status.message().find(one.file), std::string_view::npos);
    ++opened;
  }
  EXPECT_EQ(opened, 5);
}

// A scanner that stops where a loader continues would miss names.
TEST(MustFail, ScanSeesEveryForbiddenName) {
  for (const Case& one : Manifest()) {
    if (one.rule != "P03") continue;
    const std::string path = HAULWAY_TESTDATA "/must_fail/" + one.file;
    const auto report = Scan(*OpenFileSource(path));
    ASSERT_TRUE(report.ok()) << one.file;
    EXPECT_FALSE(report->safe()) << one.file;
    ASSERT_FALSE(report->pickles.empty()) << one.file;
    bool named = false;
    for (const ScannedGlobal& global : report->pickles[0].globals) {
      named = named || !global.allowed;
    }
    EXPECT_TRUE(named) << one.file;
  }
}

TEST(MustFail, LenientIsNoLessSafeForMemory) {
  OpenOptions options;
  options.strictness = Strictness::kLenient;
  int opened = 0;
  for (const Case& one : Manifest()) {
    const std::string path = HAULWAY_TESTDATA "/must_fail/" + one.file;
    const auto checkpoint = Checkpoint::Open(*OpenFileSource(path), options);
    if (!checkpoint.ok()) continue;
    ++opened;
    std::vector<uint32_t> rows((*checkpoint)->index().storages.size());
    std::iota(rows.begin(), rows.end(), 0);
    (void)LoadStorages(**checkpoint, rows, {.threads = 1}).status();
  }
  EXPECT_GT(opened, 10) << "lenient mode takes what torch tolerates";
}

}  // namespace
}  // namespace haulway
