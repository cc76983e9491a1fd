#include "ranks/rank_list.h"

namespace haulway::ranks {

namespace {

// No other format begins so.
constexpr std::string_view kTorchMark("\0haulway ranks of torch\0", 24);
constexpr std::string_view kDeepSpeedMark("\0haulway ranks of zero!\0", 24);
static_assert(kTorchMark.back() == '\0' && kDeepSpeedMark.back() == '\0');

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::string EncodeRankList(ListKind kind, std::span<const std::string> files) {
  std::string text(kind == ListKind::kTorch ? kTorchMark : kDeepSpeedMark);
  for (const std::string& file : files) {
    text += file;
    text += '\0';
  }
  return text;
}

bool IsTorchList(std::span<const std::byte> head) {
  return TextOf(head).starts_with(kTorchMark);
}

bool IsDeepSpeedList(std::span<const std::byte> head) {
  return TextOf(head).starts_with(kDeepSpeedMark);
}

Result<std::vector<std::string>> ParseRankList(
    std::span<const std::byte> bytes) {
  std::string_view text = TextOf(bytes);
  if ((!IsTorchList(bytes) && !IsDeepSpeedList(bytes)) || text.back() != '\0') {
    return Status(Code::kCorrupt, "not a listing of the files of processes");
  }
  text.remove_prefix(kTorchMark.size());
  std::vector<std::string> files;
  while (!text.empty()) {
    const size_t end = text.find('\0');
    files.emplace_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return files;
}

}  // namespace haulway::ranks
