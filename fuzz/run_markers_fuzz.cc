// Property: any files under any names as a training run result in checkpoints
// in an order, each of which is good or has a reason, or in a typed error.
// Nothing is outside of the run, and what is good with digests is good without.
// Any text as a manifest results in names below a folder, and is the same when
// it is written and parsed again.
//
// Input: names and contents of files in turn, each after its length: of a name
// in one byte, of a content in two.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haulway/runs.h"
#include "haulway/source.h"
#include "ranks/rank_list.h"
#include "runs/run_folder.h"
#include "runs/run_manifest.h"
#include "runs/run_reading.h"

namespace {

using haulway::Result;
using haulway::RunEntry;
using haulway::RunManifest;

constexpr std::string_view kRoot = "store/run/";

using Files = std::map<std::string, std::string, std::less<>>;

std::string_view Take(size_t size, std::string_view* rest) {
  const auto taken = rest->substr(0, size);
  rest->remove_prefix(taken.size());
  return taken;
}

size_t TakeLength(int bytes, std::string_view* rest) {
  size_t length = 0;
  const std::string_view digits = Take(static_cast<size_t>(bytes), rest);
  for (size_t i = 0; i < digits.size(); ++i) {
    length |= size_t{static_cast<uint8_t>(digits[i])} << (8 * i);
  }
  return length;
}

Files FilesOf(std::string_view rest) {
  Files files;
  while (!rest.empty()) {
    const std::string_view name = Take(TakeLength(1, &rest), &rest);
    const std::string_view content = Take(TakeLength(2, &rest), &rest);
    // The library's own listing of a folder names neighbours.
    const bool is_listing =
        haulway::ranks::IsTorchList(std::as_bytes(std::span(content))) ||
        haulway::ranks::IsDeepSpeedList(std::as_bytes(std::span(content)));
    if (haulway::IsPathBelow(name) && !is_listing) files.emplace(name, content);
  }
  return files;
}

void CheckManifest(std::string_view json) {
  const auto manifest = haulway::ParseRunManifest(json);
  if (!manifest.ok()) return;
  for (const haulway::ManifestFile& file : manifest->files) {
    if (!haulway::IsPathBelow(file.name)) abort();
  }
  if (!manifest->save.empty() && !haulway::IsPathBelow(manifest->save)) abort();
  const std::string written = haulway::RunManifestToJson(*manifest);
  const auto again = haulway::ParseRunManifest(written);
  if (!again.ok() || haulway::RunManifestToJson(*again) != written) abort();
}

void CheckRun(const haulway::RunFolder& folder, std::string_view layout) {
  haulway::RunOptions options;
  options.layout = layout;
  options.threads = 1;
  const auto run = haulway::ReadRunIn(folder, options);
  if (!run.ok()) {
    if (run.status().message().empty()) abort();
    return;
  }
  if (run->uncommitted > run->entries.size()) abort();
  for (size_t i = 0; i < run->entries.size(); ++i) {
    options.digests = true;
    const Result<RunEntry> verified = haulway::CheckEntry(*run, i, options);
    options.digests = false;
    const Result<RunEntry> entry = haulway::CheckEntry(*run, i, options);
    for (const auto* one : {&verified, &entry}) {
      if (!one->ok()) continue;
      if ((*one)->good != (*one)->reason.empty()) abort();
      std::string_view path = (*one)->path;
      if (!path.starts_with(kRoot)) abort();
      path.remove_prefix(kRoot.size());
      if (path.ends_with('/')) path.remove_suffix(1);
      if (!haulway::IsPathBelow(path)) abort();
    }
    if (verified.ok() && verified->good && !(entry.ok() && entry->good)) {
      abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  CheckManifest(text);
  const Files files = FilesOf(text);
  if (files.empty() || files.size() > 64) return 0;
  std::vector<haulway::RunFile> listed;
  for (const auto& [name, content] : files) {
    CheckManifest(content);
    listed.push_back({.name = name, .bytes = content.size()});
  }
  const auto open = [&](std::string_view name)
      -> Result<std::shared_ptr<const haulway::ByteSource>> {
    const auto found = files.find(name);
    if (found == files.end()) {
      return haulway::Status(haulway::Code::kNotFound, "no such file");
    }
    return haulway::MakeMemorySource(std::as_bytes(std::span(found->second)),
                                     std::string(name));
  };
  const auto folder =
      haulway::RunFolder::Of(std::string(kRoot), std::move(listed), open);
  CheckRun(folder, "");
  for (const std::string_view layout : haulway::kRunLayoutWords) {
    CheckRun(folder, layout);
  }
  return 0;
}
