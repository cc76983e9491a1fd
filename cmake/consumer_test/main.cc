#include <haulway/checkpoint.h>

#include <iostream>
#include <vector>

int main() {
  const auto checkpoint = haulway::Checkpoint::Open("testdata/small.pt");
  if (!checkpoint.ok()) {
    std::cerr << checkpoint.status().message() << "\n";
    return 1;
  }
  const auto* tensor = (*checkpoint)->Find("model.embedding.weight");
  if (tensor == nullptr) return 1;
  std::vector<std::byte> bytes(tensor->nbytes);
  const haulway::Status status = (*checkpoint)->Read(*tensor, bytes);
  return status.ok() ? 0 : 1;
}
