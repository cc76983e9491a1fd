// The golden files of testdata/golden/tensorizer, and their contents.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace haulway::test {

// A line of manifest.tsv.
struct TensorizerGolden {
  std::string file;
  std::string name;  // Paths as JSON.
  std::string type;
  std::string module;
  std::string dtype;
  std::string shape;
  std::string header_offset;
  std::string header_bytes;
  std::string data_offset;
  std::string data_bytes;
  std::string crc32;
  std::string data;  // Decrypted, in hexadecimal; "meta" for a meta tensor.
};

// Returns all lines, in file order.
std::vector<TensorizerGolden> TensorizerManifest();
// Returns the names of the files, each once.
std::vector<std::string> TensorizerFiles();
// Returns a name that GoogleTest accepts.
std::string TestName(std::string_view file);

// Returns the bytes of a file; empty if it does not exist.
std::string TensorizerFile(std::string_view name);

// Returns the file without the unused part of its index: still valid, and a few
// hundred bytes long. Files without such a part are unchanged.
std::string WithoutIndexSlack(const std::string& file);

std::string Hex(std::string_view bytes);

}  // namespace haulway::test
