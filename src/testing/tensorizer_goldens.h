// The golden files of testdata/golden/tensorizer, and what is in them.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace haulway::testing {

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
  std::string data;  // Decrypted, in hexadecimal; "meta".
};

// All lines, in the order of the files.
std::vector<TensorizerGolden> TensorizerManifest();
// The names of the files, each once.
std::vector<std::string> TensorizerFiles();
// A name that GoogleTest takes.
std::string TestName(std::string_view file);

// The bytes of a file; empty if it is not there.
std::string TensorizerFile(std::string_view name);

// The same file with the unused part of its index cut out: as legal, and some
// hundred bytes long. Files without such a part are unchanged.
std::string WithoutIndexSlack(const std::string& file);

std::string Hex(std::string_view bytes);

}  // namespace haulway::testing
