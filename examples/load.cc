// Loads one rank's part of the tensors that a pattern selects, and nothing else
// of the file.
//
//   load PATH PATTERN RANK WORLD

#include "haulway/load.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/select.h"

using namespace haulway;

namespace {

Status Load(const std::string& path, const SelectOptions& options) {
  HAULWAY_ASSIGN(const auto checkpoint, Checkpoint::Open(path));
  HAULWAY_ASSIGN(const auto chosen, SelectTensors(*checkpoint, options));
  std::vector<std::vector<std::byte>> memory;
  std::vector<TensorRequest> requests;
  for (const SelectedTensor& one : chosen) {
    TensorRequest request = one.request;
    HAULWAY_ASSIGN(const uint64_t bytes, RequestBytes(*checkpoint, request));
    request.out = memory.emplace_back(bytes);
    requests.push_back(std::move(request));
  }
  HAULWAY_ASSIGN(const LoadStats stats,
                 LoadTensors(*checkpoint, requests, {.verify = true}));
  std::printf("%zu tensors, %zu bytes in %zu requests\n", requests.size(),
              static_cast<size_t>(stats.tensor_bytes),
              static_cast<size_t>(stats.requests));
  return Status();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  SelectOptions options;
  options.names.include = std::vector<std::string>{argv[2]};
  options.shard =
      ShardOptions{.rank = std::atoi(argv[3]), .world = std::atoi(argv[4])};
  const Status status = Load(argv[1], options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}
