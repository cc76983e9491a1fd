#include "progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "columns.h"
#include "haulway/open.h"
#include "output.h"
#include "tell.h"

namespace haulway::cli {
namespace {

// Returns the columns of the terminal; SIZE_MAX if it does not say.
size_t TerminalColumns() {
  winsize size{};
  const bool known =
      ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0;
  return known ? size.ws_col : SIZE_MAX;
}

// Returns a line that fits into the terminal, because a line that wraps cannot
// be drawn again. Cuts the start of `label`, and then the end of `rest`.
std::string Fitted(const std::string& label, const std::string& rest) {
  // Some terminals wrap when the last column is filled.
  const size_t room = TerminalColumns() - 1;
  const size_t left = room - std::min(room, rest.size());
  if (Columns(label) <= left) return label + rest;
  constexpr std::string_view kCut = "...";
  std::string_view end = label;
  while (!end.empty() && Columns(end) + kCut.size() > left) {
    do end.remove_prefix(1);
    while (!end.empty() && (static_cast<uint8_t>(end[0]) & 0xC0) == 0x80);
  }
  if (!end.empty()) return fmt::format("{}{}{}", kCut, end, rest);
  return rest.substr(0, room);
}

}  // namespace

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
    const std::string rest = fmt::format(
        ": {:3.0f}% | {}/{} [{:.1f} s, {}/s{}]", share * 100, Size(done, false),
        Size(total, false), seconds, Size(rate, false), left);
    Tell(fmt::format("\r\x1b[K{}{}", Fitted(label, rest),
                     end ? "\r\x1b[K" : ""));
  };
}

std::function<void(std::string_view)> CountedFiles(bool off) {
  if (off || isatty(STDERR_FILENO) == 0) return nullptr;
  return [files = uint64_t{0}](std::string_view name) mutable {
    if (!name.empty()) ++files;
    Tell(fmt::format("\r\x1b[K{}",
                     name.empty() ? ""
                                  : Fitted(Escape(ShownName(std::string(name))),
                                           fmt::format(": {} done", files))));
  };
}

}  // namespace haulway::cli
