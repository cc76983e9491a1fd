// Lists the tensors of a checkpoint, and reads one of them.
//
//   open PATH NAME
//
// PATH is a file of any format, a model's folder, an index of shards, or "-".

#include <cstdio>
#include <string>
#include <vector>

#include "haulway/checkpoint.h"

using namespace haulway;

namespace {

Status Show(const std::string& path, const std::string& name) {
  HAULWAY_ASSIGN(const auto checkpoint, Checkpoint::Open(path));
  for (const Entry& entry : checkpoint->entries()) {
    const TensorInfo& tensor = checkpoint->index().tensors[entry.tensor];
    std::printf("%s: %s, %zu dimensions, %zu bytes\n",
                std::string(entry.name).c_str(),
                std::string(Name(tensor.dtype)).c_str(), tensor.shape.size(),
                static_cast<size_t>(tensor.nbytes));
  }
  const TensorInfo* tensor = checkpoint->Find(name);
  if (tensor == nullptr) return Status(Code::kNotFound, "no such tensor");
  std::vector<std::byte> bytes(tensor->nbytes);
  return checkpoint->Read(*tensor, bytes);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const Status status = Show(argv[1], argv[2]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}
