// Design: tensors are written as they arrive. The engine writes headers and
// data in batches, to a file that gets its name only on Commit(). The index and
// the file header come before the tensors but are known last, so they are
// written last, into reserved room. If the index outgrows its room, the file is
// written again around the data, from the body to the target.
//
// Alternatives not taken: keep the tensors until the end, as Save() does; a
// stream exists to avoid that memory. Reserve much room by a guess; the files
// would differ from the reference's. When headers move, they keep their place
// modulo the alignment, because digests cover their padding.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/tensorizer.h"
#include "tensorizer/tensor_plan.h"
#include "tensorizer/tensorizer_layout.h"
#include "tensorizer/tensorizer_writer.h"

namespace haulway {

namespace tensorizer {

namespace {

// A Batch lays out tensors one after another, each with its header before it,
// and keeps the headers. Offsets are relative to the batch's start.
class Batch : public haulway::Layout {
 public:
  Batch(std::span<const TensorPlan> plans, std::vector<Frame> frames,
        std::vector<Payload> payloads, const Secret& key, HashRule rule,
        std::span<std::vector<std::byte>> headers)
      : plans_(plans),
        frames_(std::move(frames)),
        payloads_(std::move(payloads)),
        key_(key),
        rule_(rule),
        headers_(headers) {}

  uint64_t size() const override { return payloads_.back().end(); }
  std::span<const Payload> payloads() const override { return payloads_; }
  std::span<const Frame> frames() const override { return frames_; }
  Digesting digesting() const override { return Digesting::kInOrder; }
  Status EncodeFrame(size_t frame, const Digests& digests,
                     std::span<std::byte> out) const override {
    // Each frame is encoded once, so no lock is needed.
    headers_[frame] = digests.of[frame];
    std::ranges::copy(headers_[frame], out.begin());
    return Status();
  }
  std::unique_ptr<PayloadEncoder> Start(size_t payload) const override {
    return EncodeTensor(plans_[payload], key_, rule_);
  }
  void DigestTogether(
      std::span<PayloadEncoder* const> encoders,
      std::span<const std::span<const std::byte>> pieces) const override {
    DigestTensorsTogether(encoders, pieces);
  }

 private:
  const std::span<const TensorPlan> plans_;
  const std::vector<Frame> frames_;
  const std::vector<Payload> payloads_;
  const Secret& key_;
  const HashRule rule_;
  const std::span<std::vector<std::byte>> headers_;
};

// A PartSink writes a part of a sink that has already begun. Its Commit() does
// not commit the whole sink.
class PartSink : public ByteSink {
 public:
  PartSink(ByteSink* sink, const SinkTraits& traits, uint64_t begin)
      : sink_(*sink), traits_(traits), begin_(begin) {}
  std::string_view name() const override { return sink_.name(); }
  Result<SinkTraits> Begin(std::optional<uint64_t>) override { return traits_; }
  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts) override {
    return sink_.WriteAt(begin_ + offset, parts);
  }
  Status Commit(uint64_t) override { return Status(); }

 private:
  ByteSink& sink_;
  const SinkTraits traits_;
  const uint64_t begin_;
};

// A Stored is another layout whose tensors are already stored elsewhere,
// encoded as that layout would encode them.
class Stored : public haulway::Layout {
 public:
  Stored(const haulway::Layout& layout,
         std::span<const std::vector<std::byte>> headers,
         const ByteSource& source, std::span<const uint64_t> offsets)
      : layout_(layout),
        headers_(headers),
        payloads_(layout.payloads().begin(), layout.payloads().end()) {
    for (size_t i = 0; i < payloads_.size(); ++i) {
      payloads_[i].bytes = nullptr;
      payloads_[i].source = &source;
      payloads_[i].source_offset = offsets[i];
    }
  }
  uint64_t size() const override { return layout_.size(); }
  uint64_t split() const override { return layout_.split(); }
  std::span<const Payload> payloads() const override { return payloads_; }
  std::span<const Frame> frames() const override { return layout_.frames(); }
  Status EncodeFrame(size_t frame, const Digests&,
                     std::span<std::byte> out) const override {
    return layout_.EncodeFrame(frame, {{}, headers_}, out);
  }

 private:
  const haulway::Layout& layout_;
  const std::span<const std::vector<std::byte>> headers_;
  std::vector<Payload> payloads_;
};

// A file that has a temporary name, so that it can be read back.
struct Body {
  std::unique_ptr<ByteSink> sink;
  SinkTraits traits;
  std::string path;
};

class Stream : public TensorizerStream {
 public:
  // Without a `target`, the body becomes the file, unless its room is too small
  // for the index.
  Stream(Body body, std::unique_ptr<ByteSink> target, std::string path,
         const TensorizerOptions& options, const FileSinkOptions& file,
         const WriteOptions& write)
      : body_(std::move(body)),
        target_(std::move(target)),
        path_(std::move(path)),
        options_(options),
        file_(file),
        write_(write),
        version_(LowestVersion(options)) {}

  Status Check(std::span<const TensorizerInput> tensors) const override {
    HAULWAY_TRY(status_);
    uint32_t version = version_;
    HAULWAY_ASSIGN(const std::vector<TensorPlan> more,
                   PlanTensors(tensors, plans_.size(), options_,
                               RuleOf(options_), &version));
    std::vector<TensorPlan> plans = plans_;
    plans.insert(plans.end(), more.begin(), more.end());
    return LayOutPlans(std::move(plans), version, options_).status();
  }

  Status Append(std::span<const TensorizerInput> tensors) override {
    if (tensors.empty()) return status_;
    HAULWAY_TRY(status_);
    status_ = Write(tensors);
    return status_;
  }

  Result<WriteStats> Commit() override {
    HAULWAY_TRY(status_);
    status_ = Status(Code::kInvalidArgument, "the file is committed already");
    Begin({});
    const bool in_place =
        target_ == nullptr && options_.layout == TensorizerLayout::kInterleaved;
    const uint64_t needed = IndexBytes(plans_, version_);
    const bool fits = needed <= index_bytes_;
    HAULWAY_ASSIGN(const auto layout,
                   LayOutPlans(plans_, version_, options_,
                               fits ? index_bytes_ : Grown(needed)));
    const auto start = std::chrono::steady_clock::now();
    HAULWAY_TRY(in_place && fits ? Finish(*layout) : WriteAnew(*layout));
    stats_.commit_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    stats_.seconds += stats_.commit_seconds;
    stats_.bytes = layout->size();
    return stats_;
  }

 private:
  uint64_t step() const { return options_.alignment; }

  // Reserves room for the index of the first tensors, which are often all of
  // them.
  void Begin(std::span<const TensorPlan> first) {
    if (end_ != 0) return;
    index_bytes_ = IndexBytes(first, version_);
    end_ = kIndexOffset + index_bytes_;
  }

  // Returns an index size that keeps headers and data at the same place modulo
  // the alignment, because a header's digest covers its padding.
  uint64_t Grown(uint64_t needed) const {
    const uint64_t by = std::lcm(kIndexStep, step());
    return index_bytes_ + (needed - index_bytes_ + by - 1) / by * by;
  }

  Status Write(std::span<const TensorizerInput> tensors) {
    HAULWAY_ASSIGN(std::vector<TensorPlan> plans,
                   PlanTensors(tensors, plans_.size(), options_,
                               RuleOf(options_), &version_));
    Begin(plans);
    std::vector<Frame> frames;
    std::vector<Payload> payloads;
    uint64_t at = end_;
    for (size_t i = 0; i < plans.size(); ++i) {
      TensorPlan& plan = plans[i];
      uint64_t end = at + HeaderBytes(plan.fields, plan.header);
      // In segments, headers have no padding and are moved at the end.
      if (options_.layout == TensorizerLayout::kInterleaved &&
          end % step() != 0) {
        plan.header.padding = step() - end % step();
        end += plan.header.padding;
      }
      frames.push_back({at - end_, end - at, Needs::kPayload, i});
      payloads.push_back(plan.PayloadAt(end - end_));
      offsets_.push_back(end);
      if (!CheckedAdd(end, plan.fields.data_bytes, &at) || at > INT64_MAX) {
        return Status(Code::kInvalidArgument, "tensors are too large");
      }
    }
    const size_t first = headers_.size();
    headers_.resize(first + plans.size());
    const Batch batch(plans, std::move(frames), std::move(payloads),
                      options_.key, RuleOf(options_),
                      std::span(headers_).subspan(first));
    PartSink part(body_.sink.get(), body_.traits, end_);
    HAULWAY_ASSIGN(const WriteStats stats, haulway::Write(batch, part, write_));
    AddUp(stats, &stats_);
    end_ = at;
    for (TensorPlan& plan : plans) {
      plan.bytes = nullptr;
      plan.source = nullptr;
      plans_.push_back(std::move(plan));
    }
    return Status();
  }

  // Writes the parts that are known last into the body.
  Status Finish(const haulway::Layout& layout) {
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < layout.frames().size(); ++i) {
      const Frame& frame = layout.frames()[i];
      if (frame.needs == Needs::kPayload) continue;
      bytes.resize(frame.length);
      HAULWAY_TRY(layout.EncodeFrame(i, {{}, headers_}, bytes));
      HAULWAY_TRY(body_.sink->WriteAt(frame.offset, bytes));
      stats_.written_bytes += frame.length;
    }
    return body_.sink->Commit(layout.size());
  }

  // Writes the file again around the data in the body.
  Status WriteAnew(const haulway::Layout& layout) {
    HAULWAY_ASSIGN(const auto source, OpenFileSource(body_.path));
    if (target_ == nullptr) {
      FileSinkOptions file = file_;
      file.temporary = nullptr;
      HAULWAY_ASSIGN(target_, OpenFileSink(path_, file));
    }
    const Stored stored(layout, headers_, *source, offsets_);
    HAULWAY_ASSIGN(const WriteStats stats,
                   haulway::Write(stored, *target_, write_));
    stats_.written_bytes += stats.written_bytes;
    body_.sink.reset();  // Frees the body's disk space.
    return Status();
  }

  Body body_;
  std::unique_ptr<ByteSink> target_;
  const std::string path_;
  const TensorizerOptions options_;
  const FileSinkOptions file_;
  const WriteOptions write_;
  uint32_t version_;
  std::vector<TensorPlan> plans_;  // Without the tensors' bytes.
  std::vector<std::vector<std::byte>> headers_;
  std::vector<uint64_t> offsets_;  // Offsets of the payloads in the body.
  uint64_t index_bytes_ = 0;
  uint64_t end_ = 0;
  WriteStats stats_;
  Status status_;
};

Result<Body> OpenBody(const std::string& path, FileSinkOptions options) {
  Body body;
  options.temporary = &body.path;
  options.direct = false;  // The body is written in small pieces.
  HAULWAY_ASSIGN(body.sink, OpenFileSink(path, options));
  HAULWAY_ASSIGN(body.traits, body.sink->Begin(std::nullopt));
  return body;
}

Status CheckStreamed(const TensorizerOptions& options) {
  HAULWAY_TRY(CheckOptions(options));
  if (options.data_file.empty()) return Status();
  return Status(Code::kUnsupported,
                "a file with a data file cannot be written as a stream");
}

}  // namespace

}  // namespace tensorizer

Result<std::unique_ptr<TensorizerStream>> TensorizerStream::Open(
    std::string path, const TensorizerOptions& options,
    const FileSinkOptions& file, const WriteOptions& write) {
  HAULWAY_TRY(tensorizer::CheckStreamed(options));
  auto body = tensorizer::OpenBody(path, file);
  if (body.ok() && !body->traits.ordered) {
    return std::unique_ptr<TensorizerStream>(
        std::make_unique<tensorizer::Stream>(
            *std::move(body), nullptr, std::move(path), options, file, write));
  }
  // The target is a pipe, or in a folder where no file can be created. Put the
  // body elsewhere.
  const Code code = body.status().code();
  if (!body.ok() && code != Code::kPermissionDenied && code != Code::kIoError) {
    return std::move(body).status();
  }
  HAULWAY_ASSIGN(auto sink, OpenFileSink(std::move(path), file));
  return Open(std::move(sink), P_tmpdir, options, write);
}

Result<std::unique_ptr<TensorizerStream>> TensorizerStream::Open(
    std::unique_ptr<ByteSink> sink, const std::string& folder,
    const TensorizerOptions& options, const WriteOptions& write) {
  HAULWAY_TRY(tensorizer::CheckStreamed(options));
  if (sink == nullptr) {
    return Status(Code::kInvalidArgument, "there is no sink to write to");
  }
  HAULWAY_ASSIGN(auto body,
                 tensorizer::OpenBody(
                     folder + "/haulway-tensors",
                     {.durability = Durability::kNone, .is_private = true}));
  return std::unique_ptr<TensorizerStream>(std::make_unique<tensorizer::Stream>(
      std::move(body), std::move(sink), std::string(), options,
      FileSinkOptions(), write));
}

}  // namespace haulway
