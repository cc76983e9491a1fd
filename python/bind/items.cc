// Bindings for concatenated archives: files in which several torch.save
// checkpoints follow one another, as torch.distributed.checkpoint writes them.
//
// Design: every item is opened as a checkpoint in its range of a file, and an
// ItemsReader joins their tensors: row i of the result is the tensor of item i,
// and its storage has its offset in the concatenation of the files. The engine
// can then plan one load over all items: it merges neighbours, reads on several
// threads, and checks frames and digests as for any file. Writing joins the
// layouts of the archives, and the engine writes one file.
//
// Opening an item reads its beginning and its end. If the file is on a server,
// these ranges and small items are fetched first, neighbours in one request.

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/loading.h"
#include "bind/records.h"
#include "bind/writing.h"
#include "haulway/archive.h"
#include "haulway/checkpoint.h"
#include "haulway/dcp.h"
#include "haulway/format.h"
#include "haulway/layout.h"
#include "haulway/machine.h"
#include "haulway/source.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;

// The location of an item.
struct Item {
  size_t source = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
};

// Ranges to prefetch before items are opened: an item of up to kWhole bytes
// completely, else kEdge bytes at its beginning and its end. In torch's files
// these hold everything except the payload.
constexpr uint64_t kWhole = 256 * kKiB;
constexpr uint64_t kEdge = 4 * kKiB;
// Ranges with a gap of at most kGap are fetched in one request, up to kWindow.
constexpr uint64_t kGap = 64 * kKiB;
constexpr uint64_t kWindow = 4 * kMiB;

// An AheadSource is a source with some ranges already in memory.
class AheadSource : public ByteSource {
 public:
  // Reads the ranges, which must be sorted and within the source.
  static Result<SourcePtr> Read(SourcePtr parent,
                                std::span<const ByteRange> ranges) {
    std::vector<Window> windows;
    for (const ByteRange& range : ranges) {
      const uint64_t end = range.offset + range.length;
      if (!windows.empty() && range.offset <= windows.back().end + kGap &&
          end <= windows.back().begin + kWindow) {
        windows.back().end = std::max(windows.back().end, end);
      } else {
        windows.push_back({range.offset, end, {}});
      }
    }
    std::vector<ReadRequest> requests;
    for (Window& window : windows) {
      HAULWAY_ASSIGN(window.bytes, AllocateBuffer(window.end - window.begin));
      requests.push_back({window.begin, window.bytes.mutable_bytes()});
    }
    HAULWAY_TRY(parent->ReadMany(requests));
    return SourcePtr(std::shared_ptr<const AheadSource>(
        new AheadSource(std::move(parent), std::move(windows))));
  }

  std::string_view name() const override { return parent_->name(); }
  uint64_t size() const override { return parent_->size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    const ReadRequest request{offset, out};
    return ReadMany(std::span(&request, 1));
  }
  Status ReadMany(std::span<const ReadRequest> requests) const override {
    std::vector<ReadRequest> rest;
    for (const ReadRequest& request : requests) {
      const auto after = std::ranges::upper_bound(windows_, request.offset, {},
                                                  &Window::begin);
      const Window* window =
          after == windows_.begin() ? nullptr : &*std::prev(after);
      if (window == nullptr || window->end < request.offset ||
          request.out.size() > window->end - request.offset) {
        rest.push_back(request);
      } else if (!request.out.empty()) {
        std::memcpy(request.out.data(),
                    window->bytes.data() + (request.offset - window->begin),
                    request.out.size());
      }
    }
    return rest.empty() ? Status() : parent_->ReadMany(rest);
  }
  SourceTraits Look(std::span<const ByteRange> ranges) const override {
    return parent_->Look(ranges);
  }
  std::optional<RemoteStats> remote_stats() const override {
    return parent_->remote_stats();
  }

 private:
  struct Window {
    uint64_t begin = 0;
    uint64_t end = 0;
    Buffer bytes;
  };

  AheadSource(SourcePtr parent, std::vector<Window> windows)
      : parent_(std::move(parent)), windows_(std::move(windows)) {}

  const SourcePtr parent_;
  const std::vector<Window> windows_;  // Sorted by `begin`.
};

// Wraps a source so that everything read to open its `items` is in memory.
Result<SourcePtr> Ahead(SourcePtr source, size_t number,
                        std::span<const Item> items) {
  std::vector<ByteRange> ranges;
  for (const Item& item : items) {
    if (item.source != number || item.length > source->size() ||
        item.offset > source->size() - item.length) {
      continue;  // Opening the item will report the error.
    }
    if (item.length <= kWhole) {
      ranges.push_back({item.offset, item.length});
      continue;
    }
    ranges.push_back({item.offset, kEdge});
    ranges.push_back({item.offset + item.length - kEdge, kEdge});
  }
  if (ranges.empty()) return source;
  std::ranges::sort(ranges, {}, &ByteRange::offset);
  return AheadSource::Read(std::move(source), ranges);
}

// An ItemsReader presents the tensors of items, one per item, in the order of
// the items.
class ItemsReader : public FormatReader {
 public:
  ItemsReader(SourcePtr source,
              std::vector<std::shared_ptr<const Checkpoint>> items)
      : source_(std::move(source)), items_(std::move(items)) {
    index_.flat = true;
    index_.offsets_computed = true;
    for (const auto& item : items_) {
      index_.offsets_computed &= item->index().offsets_computed;
      has_digests_ |= item->reader().has_digests();
    }
  }
  // Adds the tensor of the next item, which begins at byte `start` of the
  // source.
  void Append(uint64_t start) {
    const CheckpointIndex& one = items_[index_.tensors.size()]->index();
    TensorInfo tensor = one.tensors[0];
    if (tensor.storage != kNoStorage) {
      StorageInfo storage = one.storages[tensor.storage];
      storage.frame_offset += start;
      storage.offset += start;
      storage.frame_end += start;
      rows_.push_back({index_.tensors.size(), tensor.storage});
      tensor.storage = static_cast<uint32_t>(index_.storages.size());
      index_.storages.push_back(storage);
    }
    index_.tensors.push_back(tensor);
  }

  const CheckpointIndex& index() const override { return index_; }
  const SourcePtr& source() const override { return source_; }
  Status CheckFrame(uint32_t storage, std::span<const std::byte> before,
                    std::span<const std::byte> after) const override {
    const Row& row = rows_[storage];
    return Of(row).CheckFrame(row.storage, before, after);
  }
  Status Decode(uint32_t storage, std::span<const std::byte> frame,
                uint64_t offset, std::span<const std::byte> stored,
                std::span<std::byte> out) const override {
    const Row& row = rows_[storage];
    return Of(row).Decode(row.storage, frame, offset, stored, out);
  }
  Result<uint64_t> UnitBytes(uint32_t storage,
                             std::span<const std::byte> frame) const override {
    const Row& row = rows_[storage];
    return Of(row).UnitBytes(row.storage, frame);
  }
  bool has_digests() const override { return has_digests_; }
  Result<std::vector<PayloadDigest>> Digests(
      uint32_t storage, std::span<const std::byte> before,
      std::span<const std::byte> after) const override {
    const Row& row = rows_[storage];
    return Of(row).Digests(row.storage, before, after);
  }

 private:
  // The item that a storage row belongs to, and the row in that item.
  struct Row {
    size_t item;
    uint32_t storage;
  };
  const FormatReader& Of(const Row& row) const {
    return items_[row.item]->reader();
  }

  const SourcePtr source_;
  const std::vector<std::shared_ptr<const Checkpoint>> items_;
  std::vector<Row> rows_;  // Parallel to storages.
  CheckpointIndex index_;
  bool has_digests_ = false;
};

// Opens one item, which must be a single tensor.
Result<std::shared_ptr<const Checkpoint>> OpenItem(const SourcePtr& source,
                                                   const Item& item,
                                                   const OpenOptions& options) {
  HAULWAY_ASSIGN(auto range, MakeSliceSource(source, item.offset, item.length));
  // The format is fixed: the file's name says nothing about an item.
  HAULWAY_ASSIGN(auto reader,
                 EntryOf(Format::kTorch).open(std::move(range), options));
  auto checkpoint = std::make_shared<const Checkpoint>(std::move(reader));
  const CheckpointIndex& index = checkpoint->index();
  HAULWAY_TRY(index.object_status);
  if (index.tensors.size() != 1 || index.flat ||
      !index.root.is(Kind::kObject)) {
    return Status(Code::kCorrupt,
                  fmt::format("object of {} tensors: expected one tensor",
                              index.tensors.size()))
        .Of(source->name());
  }
  return checkpoint;
}

// Opens items on several threads, in order of their number. After a failure,
// only items before the failed one are still opened.
class ItemsOpener {
 public:
  ItemsOpener(std::span<const SourcePtr> sources, std::span<const Item> items,
              const OpenOptions& options)
      : sources_(sources),
        items_(items),
        options_(options),
        opened_(items.size()),
        failed_(items.size()) {}

  // Returns the items, or the error of the first item that failed.
  Result<std::vector<std::shared_ptr<const Checkpoint>>> Run(size_t* failed) {
    const size_t count =
        std::clamp<size_t>(UsableCpus(), 1, items_.size() / kLeast + 1);
    {
      std::vector<std::jthread> others;
      for (size_t i = 1; i < count; ++i) {
        others.emplace_back([this] { Work(); });
      }
      Work();
    }
    *failed = failed_;
    if (failed_ != items_.size()) return status_;
    return std::move(opened_);
  }

 private:
  static constexpr size_t kLeast = 64;  // Minimum number of items per thread.

  void Work() {
    for (size_t i = next_++; i < failed_; i = next_++) {
      Status status;
      try {
        auto one = OpenItem(sources_[items_[i].source], items_[i], options_);
        if (one.ok()) {
          opened_[i] = *std::move(one);
          continue;
        }
        status = one.status();
      } catch (const std::bad_alloc&) {
        status = Status(Code::kLimit, "out of memory");
      }
      const std::lock_guard lock(mutex_);
      if (i >= failed_) continue;
      failed_ = i;
      status_ = status;
    }
  }

  const std::span<const SourcePtr> sources_;
  const std::span<const Item> items_;
  const OpenOptions& options_;
  std::vector<std::shared_ptr<const Checkpoint>> opened_;
  std::atomic<size_t> next_ = 0;
  std::atomic<size_t> failed_;
  std::mutex mutex_;
  Status status_;
};

// Opens items. On failure, `failed` is the number of the item.
Result<std::shared_ptr<const Checkpoint>> OpenItems(
    std::vector<SourcePtr> sources, std::span<const Item> items,
    const OpenOptions& options, size_t* failed) {
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!sources[i]->Look({}).is_server()) continue;
    HAULWAY_ASSIGN(sources[i], Ahead(sources[i], i, items));
  }
  HAULWAY_ASSIGN(auto opened, ItemsOpener(sources, items, options).Run(failed));
  const std::string name(sources.empty() ? "nothing" : sources[0]->name());
  HAULWAY_ASSIGN(Concatenation joined,
                 ConcatenateSources(std::move(sources), name));
  auto reader = std::make_unique<ItemsReader>(std::move(joined.source),
                                              std::move(opened));
  for (const Item& item : items) {
    reader->Append(joined.starts[item.source] + item.offset);
  }
  return std::make_shared<const Checkpoint>(std::move(reader));
}

// A layout of bytes that are written unchanged.
class BytesLayout : public Layout {
 public:
  BytesLayout(std::span<const std::byte> bytes, Digesting digesting)
      : payload_{0, bytes.size(), bytes.data()}, digesting_(digesting) {}
  uint64_t size() const override { return payload_.length; }
  std::span<const Payload> payloads() const override { return {&payload_, 1}; }
  std::span<const Frame> frames() const override { return {}; }
  Digesting digesting() const override { return digesting_; }
  Status EncodeFrame(size_t /*frame*/, const Digests& /*digests*/,
                     std::span<std::byte> /*out*/) const override {
    return Status();
  }

 private:
  const Payload payload_;
  const Digesting digesting_;
};

// Writes items as zstd frames, and returns the (offset, length) of each.
nb::list WriteFrames(nb::object target,
                     std::span<const std::unique_ptr<const Layout>> items,
                     const Engine& engine, nb::object progress) {
  const Signals signals = SignalsOf(target);
  auto sink = OpenSink(std::move(target), engine.file);
  WriteOptions options = engine.write;
  Progress told(std::move(progress));
  told.Attach(&options);
  const auto write = [&](ByteSink& to) {
    return WriteCompressed(items, to, options);
  };
  const std::vector<ByteRange> written =
      RunWith(std::move(sink), told, signals, write);
  nb::list ranges;
  for (const ByteRange& range : written) {
    ranges.append(nb::make_tuple(range.offset, range.length));
  }
  return ranges;
}

}  // namespace

void BindItems(nb::module_& module) {
  // Returns a Checkpoint whose row i is the tensor of item i, a tuple (number
  // of a source, offset, length). `said` is a function from a row to the item's
  // name in messages.
  module.def(
      "open_items",
      [](std::vector<std::shared_ptr<ByteSource>> sources, nb::list list,
         nb::object said, nb::dict opening) {
        std::vector<Item> items;
        items.reserve(list.size());
        for (const nb::handle one : list) {
          const nb::tuple parts = nb::cast<nb::tuple>(one);
          const auto source = nb::cast<size_t>(parts[0]);
          if (source >= sources.size()) {
            Raise(Status(Code::kInvalidArgument, "no such source"));
          }
          items.push_back({source, nb::cast<uint64_t>(parts[1]),
                           nb::cast<uint64_t>(parts[2])});
        }
        const OpenOptions options = OpenOptionsOf(std::move(opening));
        size_t failed = items.size();
        Status status;
        const auto open = [&]() -> Result<std::shared_ptr<const Checkpoint>> {
          auto opened = OpenItems({sources.begin(), sources.end()}, items,
                                  options, &failed);
          if (opened.ok()) return opened;
          status = opened.status();
          return std::shared_ptr<const Checkpoint>();
        };
        const bool waits = std::ranges::any_of(
            sources, [](const auto& one) { return IsRemote(*one); });
        auto opened = waits ? Minding(open) : Unwrap(WithoutGil(open));
        if (!status.ok()) {
          if (failed < items.size()) {
            status = std::move(status).In(nb::cast<std::string>(said(failed)));
          }
          Raise(status);
        }
        return std::const_pointer_cast<Checkpoint>(std::move(opened));
      },
      nb::arg("sources"), nb::arg("items"), nb::arg("said"),
      nb::arg("opening") = nb::dict());

  // Writes items back to back as one file. An item is bytes, written unchanged,
  // or a list of records as for write_archive(). Returns the (offset, length)
  // of each item. If `compressed`, each item becomes one zstd frame.
  module.def(
      "write_items",
      [](nb::object target, nb::list list, nb::dict writing,
         nb::object progress, bool compressed) {
        std::vector<Records> records;
        std::vector<Borrowed> borrowed;
        std::vector<std::unique_ptr<const Layout>> items;
        records.reserve(list.size());
        borrowed.reserve(list.size());
        ArchiveWriterOptions options;
        const Engine engine = EngineOf(std::move(writing), &options);
        for (const nb::handle one : list) {
          if (nb::isinstance<nb::list>(one)) {
            Records& of = records.emplace_back(nb::borrow<nb::list>(one));
            items.push_back(
                Unwrap(LayOutArchive(std::move(of.records), options)));
          } else {
            items.push_back(std::make_unique<BytesLayout>(
                borrowed.emplace_back(one).bytes(),
                options.compute_crc32 ? Digesting::kCrc32 : Digesting::kNone));
          }
        }
        if (compressed) {
          return WriteFrames(std::move(target), items, engine,
                             std::move(progress));
        }
        nb::list ranges;
        uint64_t end = 0;
        for (const auto& item : items) {
          ranges.append(nb::make_tuple(end, item->size()));
          end += item->size();
        }
        const auto layout = JoinLayouts(std::move(items));
        WriteFile(std::move(target), *layout, engine, std::move(progress));
        return ranges;
      },
      nb::arg("target"), nb::arg("items"), nb::arg("writing"),
      nb::arg("progress").none(), nb::arg("compressed") = false);
}

}  // namespace haulway::python
