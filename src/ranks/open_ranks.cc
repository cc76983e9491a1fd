#include "ranks/open_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/is_of_source.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "haulway/machine.h"
#include "ranks/rank_list.h"
#include "torch/torch_reader.h"

namespace haulway::ranks {

namespace {

constexpr uint64_t kReadAtOnce = 8 * kMiB;

// Reads the tensors of which there are replicas. Fails for one that is not
// whole.
Status CompareReplicas(const PiecedSource& source,
                       const VerifyOptions& options) {
  std::vector<uint32_t> tensors;
  std::vector<uint64_t> ends;  // The number of reads up to each tensor's end.
  uint64_t reads = 0;
  for (uint32_t t = 0; t < source.tensors().size(); ++t) {
    HAULWAY_TRY(source.CheckWhole(t));
    if (source.tensors()[t].replicas.empty()) continue;
    reads += source.BytesOf(t) / kReadAtOnce + 1;
    tensors.push_back(t);
    ends.push_back(reads);
  }
  const int threads = options.threads > 0 ? options.threads : UsableCpus();
  return ParallelFor(reads, threads, [&](uint64_t i) -> Status {
    if (options.cancel != nullptr && options.cancel->load()) {
      return Status(Code::kCancelled, "cancelled");
    }
    const auto row =
        static_cast<size_t>(std::ranges::upper_bound(ends, i) - ends.begin());
    const uint64_t first = row == 0 ? 0 : ends[row - 1];
    const uint64_t at = (i - first) * kReadAtOnce;
    std::vector<std::byte> bytes(
        std::min(kReadAtOnce, source.BytesOf(tensors[row]) - at));
    return source.ReadAt(source.StartOf(tensors[row]) + at, bytes);
  });
}

// Adds the report of a file.
void Merge(const std::string& name, VerifyReport one, VerifyReport* all) {
  const std::string place = fmt::format("; of {}", Escape(name));
  all->ok = all->ok && one.ok;
  all->checked_bytes += one.checked_bytes;
  all->file_bytes += one.file_bytes;
  for (Finding& finding : one.findings) {
    finding.message += place;
    all->findings.push_back(std::move(finding));
  }
  for (Unchecked& range : one.unchecked) {
    range.what += place;
    all->unchecked.push_back(std::move(range));
  }
  for (std::string& note : one.notes) all->notes.push_back(note + place);
}

}  // namespace

Result<std::vector<std::string>> ReadList(const ByteSource& list) {
  HAULWAY_ASSIGN(const Buffer bytes, AllocateBuffer(list.size()));
  HAULWAY_TRY(list.ReadAt(0, bytes.mutable_bytes()));
  return ParseRankList(bytes.bytes());
}

Result<std::vector<RankFile>> OpenFiles(const ByteSource& list,
                                        const std::vector<std::string>& names,
                                        const OpenOptions& options) {
  std::vector<RankFile> files(names.size());
  const auto open = [&](uint64_t i) -> Status {
    const std::string& name = names[i];
    if (name.empty()) return Status();
    auto source = list.OpenNeighbour(name);
    if (!source.ok()) return std::move(source).status().Of(name);
    auto reader = torch::OpenOfProcess(*std::move(source), options);
    if (!reader.ok()) return std::move(reader).status().Of(name);
    files[i] = {name, i, *std::move(reader)};
    return Status();
  };
  const int threads = std::max(list.Look({}).parallel, 1);
  HAULWAY_TRY(ParallelFor(files.size(), threads, open));
  return files;
}

Result<VerifyReport> VerifyFiles(std::shared_ptr<const ByteSource> list,
                                 Format format, JoinFunction join,
                                 const VerifyOptions& options) {
  VerifyReport report;
  report.file = list->name();
  report.format = format;
  const auto note = [&](Status status) -> Status {
    if (IsOfSource(status) && status.code() != Code::kNotFound) return status;
    report.ok = false;
    report.findings.push_back(
        {status.code(), std::string(status.message()), status.byte()});
    return Status();
  };
  HAULWAY_ASSIGN(const std::vector<std::string> names, ReadList(*list));
  for (const std::string& name : names) {
    auto source = list->OpenNeighbour(name);
    if (!source.ok()) {
      HAULWAY_TRY(note(std::move(source).status().Of(name)));
      continue;
    }
    VerifyOptions one = options;
    one.progress = nullptr;
    HAULWAY_ASSIGN(VerifyReport verified,
                   torch::VerifyOfProcess(*std::move(source), one));
    Merge(name, std::move(verified), &report);
  }
  if (!report.ok) return report;
  const auto opened = join(list, options.open);
  Status status = opened.status();
  if (opened.ok()) status = CompareReplicas((*opened)->pieced(), options);
  if (status.code() == Code::kCancelled) return status;
  // What cannot be put together need not be damaged.
  if (status.code() == Code::kUnsupported) return status;
  if (!status.ok()) HAULWAY_TRY(note(std::move(status)));
  return report;
}

}  // namespace haulway::ranks
