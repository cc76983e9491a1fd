// Builds arrays and archives of arrays in memory.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "testing/zip_builder.h"

namespace haulway::npy::test {

// Returns an array with this header, without padding.
inline std::string Npy(std::string_view header, std::string_view data,
                       int version = 1) {
  return "\x93NUMPY" + std::string(1, static_cast<char>(version)) +
         std::string(1, '\0') +
         haulway::test::Little(header.size(), version == 1 ? 2 : 4) +
         std::string(header) + std::string(data);
}

// Returns an array as NumPy writes it, padded so that the data begins at a
// multiple of 64.
inline std::string Array(std::string_view descr, std::string_view shape,
                         std::string_view data, bool fortran = false) {
  std::string header = "{'descr': " + std::string(descr) +
                       ", 'fortran_order': " + (fortran ? "True" : "False") +
                       ", 'shape': " + std::string(shape) + ", }";
  while ((10 + header.size() + 1) % 64 != 0) header += ' ';
  return Npy(header + "\n", data);
}

// Zips as ordinary tools do.
inline haulway::test::BuiltZip Zip(
    const std::vector<haulway::test::ZipRecord>& records) {
  return haulway::test::BuildZip(
      records, {.padding = false, .descriptors = false, .zip64_end = false});
}

}  // namespace haulway::npy::test
