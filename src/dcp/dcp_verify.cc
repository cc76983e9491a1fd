// Design: every archive is verified as a file of torch.save(), by its own
// directory. Then the chunk's data is located as a load does it, and both ways
// must find the same place. An archive that extensions transformed is verified
// as it is decoded.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/is_of_source.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "dcp/dcp_archive.h"
#include "dcp/dcp_directory.h"
#include "dcp/dcp_item.h"
#include "dcp/dcp_reader.h"
#include "haulway/machine.h"
#include "torch/torch_reader.h"

namespace haulway::dcp {

namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;

// The data of a tensor begin within this.
constexpr uint64_t kDecodedHead = 64 * kKiB;

// An archive of a directory.
struct Archive {
  StoredItem item;
  std::string place;  // "chunk [0]+[4]; in 'w'", or "'epoch'".
  uint32_t tensor = kNoFile;
  uint32_t chunk = 0;
};

std::vector<Archive> ArchivesOf(const Metadata& metadata) {
  std::vector<Archive> archives;
  for (uint32_t t = 0; t < metadata.tensors.size(); ++t) {
    const StoredTensor& tensor = metadata.tensors[t];
    for (uint32_t c = 0; c < tensor.chunk_count; ++c) {
      const uint32_t row = tensor.first_chunk + c;
      const Chunk& chunk = metadata.chunks[row];
      if (chunk.item.file == kNoFile) continue;
      archives.push_back(
          {chunk.item,
           fmt::format("{}; in {}", PlaceOf(chunk), Quote(tensor.name)),
           BytesOf(tensor, chunk) == 0 ? kNoFile : t, row});
    }
  }
  for (const StoredObject& object : metadata.objects) {
    archives.push_back({object.item, Quote(object.name)});
  }
  std::ranges::sort(archives, {}, [](const Archive& archive) {
    return std::pair(archive.item.file, archive.item.offset);
  });
  return archives;
}

class Verifier {
 public:
  Verifier(const DirectoryReader& directory, const VerifyOptions& options,
           VerifyReport* report)
      : directory_(directory),
        options_(options),
        archives_(ArchivesOf(directory.metadata())),
        report_(*report) {
    for (const Archive& archive : archives_) total_ += archive.item.length;
    report_.file_bytes += total_;
  }

  Status Run() {
    const int threads = options_.threads > 0 ? options_.threads : UsableCpus();
    HAULWAY_TRY(ParallelFor(archives_.size(), threads,
                            [&](uint64_t i) { return Check(archives_[i]); }));
    std::ranges::stable_sort(report_.findings, {}, &Finding::message);
    std::ranges::sort(report_.notes);
    return Status();
  }

 private:
  Status Check(const Archive& archive) {
    const std::string name(directory_.files().name(archive.item.file));
    VerifyReport one;
    Status status = CheckArchive(archive, &one);
    if (IsOfSource(status)) return status;
    const std::string place =
        fmt::format("; in {}; of {}", archive.place, Escape(name));
    const std::lock_guard lock(mutex_);
    if (!status.ok()) {
      one.findings.push_back(
          {status.code(), std::string(status.message()), status.byte()});
    }
    report_.ok = report_.ok && one.findings.empty();
    report_.checked_bytes += one.checked_bytes;
    for (Finding& finding : one.findings) {
      finding.message += place;
      report_.findings.push_back(std::move(finding));
    }
    for (Unchecked& range : one.unchecked) {
      range.what += place;
      report_.unchecked.push_back(std::move(range));
    }
    for (std::string& note : one.notes) report_.notes.push_back(note + place);
    done_ += archive.item.length;
    if (options_.progress) options_.progress(done_, total_);
    return Status();
  }

  Status CheckArchive(const Archive& archive, VerifyReport* one) const {
    HAULWAY_ASSIGN(const SourcePtr file,
                   directory_.files().Open(archive.item.file));
    HAULWAY_ASSIGN(const SourcePtr bytes, BytesOf(archive, file));
    VerifyOptions options = options_;
    options.progress = nullptr;
    options.threads = 1;
    HAULWAY_ASSIGN(*one, torch::VerifyZip(bytes, options));
    if (!one->findings.empty() || archive.tensor == kNoFile) return Status();
    auto found = PayloadOf(archive, *bytes);
    if (!found.ok() && found.status().code() == Code::kUnsupported) {
      // Its checksums match, whatever it contains.
      one->notes.emplace_back(found.status().message());
      return Status();
    }
    HAULWAY_ASSIGN(const uint64_t payload, std::move(found));
    HAULWAY_ASSIGN(const auto reader, torch::OpenZip(bytes, options.open));
    const CheckpointIndex& index = reader->index();
    if (index.tensors.size() == 1 && index.tensors[0].storage != kNoStorage) {
      const TensorInfo& tensor = index.tensors[0];
      const uint64_t at = index.storages[tensor.storage].offset +
                          tensor.storage_offset * ItemBytes(tensor.dtype);
      if (at == payload) return Status();
    }
    return Status(Code::kCorrupt,
                  "archive's directory has the data elsewhere than its "
                  "records");
  }

  // Returns the bytes of the archive, as torch.save() wrote them.
  Result<SourcePtr> BytesOf(const Archive& archive,
                            const SourcePtr& file) const {
    if (archive.item.transforms.empty()) {
      return MakeSliceSource(file, archive.item.offset, archive.item.length);
    }
    const Metadata& metadata = directory_.metadata();
    const uint64_t nbytes = archive.tensor == kNoFile
                                ? 0
                                : dcp::BytesOf(metadata.tensors[archive.tensor],
                                               metadata.chunks[archive.chunk]);
    return DecodeItem(file, archive.item, MostOfTensor(nbytes),
                      std::string(file->name()));
  }

  // Returns where in the archive a load finds the chunk's data.
  Result<uint64_t> PayloadOf(const Archive& archive,
                             const ByteSource& bytes) const {
    if (archive.item.transforms.empty()) {
      HAULWAY_ASSIGN(const ChunkPlace place,
                     directory_.PlaceOf(archive.tensor, archive.chunk));
      return place.offset - archive.item.offset;
    }
    std::vector<std::byte> head(std::min(bytes.size(), kDecodedHead));
    HAULWAY_TRY(bytes.ReadAt(0, head));
    HAULWAY_ASSIGN(const auto found, ParseArchiveHead(head, bytes.size()));
    if (!found.has_value()) {
      return Status(Code::kCorrupt, "chunk is no archive with a tensor");
    }
    const Metadata& metadata = directory_.metadata();
    HAULWAY_ASSIGN(const ChunkOrder order,
                   CheckChunkPickle(found->pickle,
                                    {metadata.tensors[archive.tensor].dtype,
                                     metadata.chunks[archive.chunk].sizes},
                                    options_.open.limits));
    return found->payload + order.first;
  }

  const DirectoryReader& directory_;
  const VerifyOptions& options_;
  const std::vector<Archive> archives_;
  uint64_t total_ = 0;
  std::mutex mutex_;
  VerifyReport& report_;
  uint64_t done_ = 0;
};

}  // namespace

Result<VerifyReport> VerifyDirectory(SourcePtr source,
                                     const VerifyOptions& options) {
  VerifyReport report;
  report.file = source->name();
  report.format = Format::kTorchDcp;
  report.file_bytes = source->size();
  auto directory = DirectoryReader::Open(std::move(source), options.open);
  if (!directory.ok()) {
    const Status status = std::move(directory).status();
    // What Haulway cannot read need not be damaged.
    const bool is_unknown = status.code() == Code::kUnsupported;
    if (is_unknown ||
        (IsOfSource(status) && status.code() != Code::kNotFound)) {
      return status;
    }
    report.ok = false;
    report.findings.push_back(
        {status.code(), std::string(status.message()), status.byte()});
    return report;
  }
  HAULWAY_TRY(Verifier(**directory, options, &report).Run());
  return report;
}

}  // namespace haulway::dcp
