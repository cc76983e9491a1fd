// Saves two tensors in the format for the file's extension, and verifies it.
//
//   save PATH

#include "haulway/save.h"

#include <cstdio>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "haulway/layout.h"
#include "haulway/open.h"
#include "haulway/verify.h"

using namespace haulway;

namespace {

TensorToWrite Matrix(const std::string& name, std::span<const float> values,
                     int64_t rows) {
  const auto columns = static_cast<int64_t>(values.size()) / rows;
  return {.name = name,
          .dtype = DType::kF32,
          .shape = {rows, columns},
          .bytes = {.length = values.size_bytes(),
                    .bytes = std::as_bytes(values).data()}};
}

Status SaveAndCheck(const std::string& path) {
  std::vector<float> weight(12), bias(3);
  std::iota(weight.begin(), weight.end(), 0.0f);
  TensorsToWrite tensors;
  tensors.tensors = {Matrix("weight", weight, 4), Matrix("bias", bias, 1)};

  HAULWAY_ASSIGN(const Format format, FormatToWrite(path));
  HAULWAY_ASSIGN(const auto sink, OpenSink(path));
  // Nothing is visible under the name until everything was written.
  HAULWAY_ASSIGN(const WriteStats stats,
                 Save(std::move(tensors), format, *sink, {.path = path}));
  std::printf("%zu bytes\n", static_cast<size_t>(stats.bytes));

  HAULWAY_ASSIGN(auto source, OpenSource(path));
  HAULWAY_ASSIGN(const VerifyReport report, Verify(std::move(source)));
  return report.ok ? Status() : Status(Code::kCorrupt, "the file is damaged");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const Status status = SaveAndCheck(argv[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}
