#include "arena/copy_pace.h"

#include <algorithm>
#include <bit>

namespace haulway::arena {

namespace {

constexpr size_t kFirstClass = 21;  // 2^21 bytes are 2 MiB.
// Copies made each way before the two are compared.
constexpr uint32_t kTrials = 4;
// After this many copies one way, one copy is made the other way.
constexpr uint32_t kTrialEvery = 32;
constexpr double kLeastGain = 1.25;

}  // namespace

CopyPace::Pace& CopyPace::ClassOf(size_t bytes) {
  const size_t log = static_cast<size_t>(std::bit_width(bytes | 1)) - 1;
  return classes_[std::clamp(log, kFirstClass, kFirstClass + kClasses - 1) -
                  kFirstClass];
}

bool CopyPace::InCompany(size_t bytes) {
  Pace& pace = ClassOf(bytes);
  const auto [alone, company] = pace.copies;
  if (alone < kTrials || company < kTrials) return company <= alone;
  const bool pays = pace.ns_per_byte[1] * kLeastGain <= pace.ns_per_byte[0];
  if (++pace.since_trial < kTrialEvery) return pays;
  pace.since_trial = 0;
  return !pays;
}

void CopyPace::Learn(bool in_company, size_t bytes,
                     std::chrono::nanoseconds took) {
  Pace& pace = ClassOf(bytes);
  const size_t way = in_company ? 1 : 0;
  const double latest =
      static_cast<double>(took.count()) / static_cast<double>(bytes);
  double& known = pace.ns_per_byte[way];
  if (pace.copies[way]++ == 0) {
    known = latest;
  } else if (latest < known) {
    known = (known + latest) / 2;
  } else {
    // Limits the weight of a copy that was interrupted.
    known += (std::min(latest, 2 * known) - known) / 4;
  }
}

}  // namespace haulway::arena
