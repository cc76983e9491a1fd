// Reads files of testdata/golden/, unpacked.

#pragma once

#include <string>
#include <vector>

namespace haulway::test {

// Returns the golden file with this name ("example.pt"), which may be stored
// packed; empty if there is none.
std::string ReadGolden(const std::string& name);

// Returns the sorted names of all golden files with this suffix (".pt"); those
// in subfolders as "folder/name". The calling test fails if there is none.
std::vector<std::string> GoldenNames(const std::string& ending);

}  // namespace haulway::test
