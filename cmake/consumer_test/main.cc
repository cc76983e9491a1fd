#include <haulway/checkpoint.h>

#include <iostream>

int main(int, char** argv) {
  const auto checkpoint = haulway::Checkpoint::Open(argv[1]);
  if (!checkpoint.ok()) return 1;
  std::cout << (*checkpoint)->entries().size() << " tensors\n";
}
