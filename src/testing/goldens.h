// Files of testdata/golden/, unpacked.

#pragma once

#include <string>
#include <vector>

namespace haulway::test {

// The golden file of that name ("example.pt"), which may be stored packed;
// empty if there is none.
std::string ReadGolden(const std::string& name);

// The names of all golden files with that ending (".pt"), those in folders of
// theirs as "folder/name", sorted. The test that asks fails if there is none.
std::vector<std::string> GoldenNames(const std::string& ending);

}  // namespace haulway::test
