#include "net/certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace haulway::net {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

// An empty root folder.
class Certificates : public ::testing::Test {
 protected:
  Certificates() {
    std::string name = fs::temp_directory_path() / "haulway_XXXXXX";
    root_ = ::mkdtemp(name.data());
  }
  ~Certificates() override { fs::remove_all(root_); }

  void Make(const std::string& place) const {
    fs::create_directories(fs::path(root_ + place).parent_path());
    std::ofstream(root_ + place) << "x";
  }

  std::string root_;
};

class CertificateFile : public Certificates,
                        public ::testing::WithParamInterface<const char*> {};

TEST_P(CertificateFile, IsFound) {
  Make(GetParam());
  const auto found = FindAuthorities("", "", root_);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->file, root_ + GetParam());
  EXPECT_EQ(found->folder, "");
}

INSTANTIATE_TEST_SUITE_P(
    Places, CertificateFile,
    ::testing::Values("/etc/ssl/certs/ca-certificates.crt",
                      "/etc/pki/tls/certs/ca-bundle.crt",
                      "/etc/ssl/ca-bundle.pem",
                      "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
                      "/etc/ssl/cert.pem"));

class CertificateFolder : public Certificates,
                          public ::testing::WithParamInterface<const char*> {};

TEST_P(CertificateFolder, IsFoundWithoutAFile) {
  fs::create_directories(root_ + GetParam());
  const auto found = FindAuthorities("", "", root_);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->file, "");
  EXPECT_EQ(found->folder, root_ + GetParam());
}

INSTANTIATE_TEST_SUITE_P(Places, CertificateFolder,
                         ::testing::Values("/etc/ssl/certs",
                                           "/etc/pki/tls/certs"));

TEST_F(Certificates, AFileComesBeforeAFolder) {
  fs::create_directories(root_ + "/etc/ssl/certs");
  Make("/etc/ssl/cert.pem");
  const auto found = FindAuthorities("", "", root_);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->file, root_ + "/etc/ssl/cert.pem");
}

TEST_F(Certificates, WhatIsNamedIsTaken) {
  Make("/etc/ssl/cert.pem");
  const auto file = FindAuthorities("mine.pem", "", root_);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->file, "mine.pem");
  const auto folder = FindAuthorities("", "mine", root_);
  ASSERT_TRUE(folder.ok());
  EXPECT_EQ(folder->file, "");
  EXPECT_EQ(folder->folder, "mine");
}

TEST_F(Certificates, WithoutAnyTheErrorSaysWhatToName) {
  const auto found = FindAuthorities("", "", root_);
  EXPECT_EQ(found.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(
      std::string(found.status().message()),
      HasSubstr(
          "name a file of them with the option ca_file or SSL_CERT_FILE"));
}

}  // namespace
}  // namespace haulway::net
