// The part of the machine that this process may use.

#pragma once

#include <cstdint>
#include <string>

namespace haulway {

struct Machine {
  int cpus = 1;
  // Bytes that can be allocated without swapping, within the limits of the
  // process and its cgroups. The page cache counts as free.
  uint64_t available_memory = 0;
};

// Reads both anew: limits may change while a process runs. Takes some ten
// microseconds. `root` is put before the paths of the system's files.
Machine LookAtMachine(const std::string& root = "");

// Returns Machine::cpus alone: by affinity and the quotas of cgroups, rounded
// up; at least 1.
int UsableCpus(const std::string& root = "");

}  // namespace haulway
