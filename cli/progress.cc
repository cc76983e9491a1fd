#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "haulway/open.h"
#include "output.h"
#include "tell.h"

namespace haulway::cli {

std::function<void(uint64_t, uint64_t)> Progress(std::string label, bool off) {
  using Clock = std::chrono::steady_clock;
  if (off || isatty(STDERR_FILENO) == 0) return nullptr;
  return [label = Escape(ShownName(label)), start = Clock::now(),
          drawn = Clock::time_point()](uint64_t done, uint64_t total) mutable {
    const auto now = Clock::now();
    const bool end = done >= total;
    if (!end && now - drawn < std::chrono::milliseconds(100)) return;
    drawn = now;
    const double seconds = std::chrono::duration<double>(now - start).count();
    const double share =
        total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total);
    const auto rate = static_cast<uint64_t>(static_cast<double>(done) /
                                            (seconds > 0 ? seconds : 1));
    // In the first second, the rate is not reliable.
    const std::string left =
        seconds < 1 || done == 0
            ? ""
            : fmt::format(", {:.0f} s left", seconds * (1 - share) / share);
    Tell(fmt::format("\r\x1b[K{}: {:3.0f}% | {}/{} [{:.1f} s, {}/s{}]{}", label,
                     share * 100, Size(done, false), Size(total, false),
                     seconds, Size(rate, false), left, end ? "\r\x1b[K" : ""));
  };
}

}  // namespace haulway::cli
