// Design: an edit writes new bytes only where the old file has none: data after
// its end; index and headers into their slack, into blocks inserted for them,
// or to a new place. Then one write of the 512-byte head makes the edit take
// effect. So an interruption leaves the old file intact, and the next edit
// overwrites the leftovers. While blocks are inserted, the head says which and
// at what file size, for processes that read in between.
//
// Alternatives not taken: rewriting the file costs its whole size for a few new
// tensors; a journal next to it would need recovery before anyone can read.
// Where blocks can be inserted (ext4, XFS), no data moves; elsewhere, index and
// headers move to the end.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/digest.h"
#include "haulway/tensorizer.h"
#include "io/editable_file.h"
#include "tensorizer/byte_writer.h"
#include "tensorizer/segment_edit_plan.h"
#include "tensorizer/segment_place.h"
#include "tensorizer/segment_rows.h"
#include "tensorizer/segment_writer.h"
#include "tensorizer/tensorizer_reader.h"

namespace haulway::tensorizer {

namespace {

// Range of the head's fields that an edit of version 1 changes.
constexpr uint64_t kChangedFrom = 41;
constexpr uint64_t kChangedTo = kSegmentIndexStart + 8;

class Editor {
 public:
  Editor(const std::string& path, const TensorizerEdit& edit,
         const TensorizerEditOptions& options)
      : path_(path), options_(options), plan_(edit, options) {}

  Result<TensorizerEditStats> Run() {
    HAULWAY_TRY(Open());
    HAULWAY_TRY(plan_.Make(*reader_));
    if (!plan_.empty()) {
      HAULWAY_ASSIGN(size_before_, file_->Size());
      HAULWAY_ASSIGN(data_size_before_, data_file().Size());
      Status status = Write();
      if (!status.ok()) {
        CutBack();
        return status;
      }
    }
    stats_.tensors = preamble_.count;
    stats_.written_bytes = file_->written_bytes() +
                           (data_ == nullptr ? 0 : data_->written_bytes());
    return stats_;
  }

 private:
  EditableFile& data_file() { return data_ != nullptr ? *data_ : *file_; }
  bool version_1() const { return !preamble_.segments.has_value(); }
  SegmentHead& head() { return *preamble_.segments; }
  uint64_t data_start() const {
    return version_1() ? preamble_.data_start : preamble_.segments->data.start;
  }

  Status Open() {
    if (!std::has_single_bit(options_.alignment) ||
        options_.alignment > kSegmentBlockBytes) {
      return Status(Code::kInvalidArgument,
                    fmt::format("alignment is out of range: expected a power "
                                "of two up to {}, found {}",
                                kSegmentBlockBytes, options_.alignment));
    }
    HAULWAY_ASSIGN(file_, EditableFile::Open(path_, options_.durability));
    HAULWAY_ASSIGN(auto source, OpenFileSource(path_));
    OpenOptions open;
    open.key = options_.key;
    open.limits = options_.limits;
    HAULWAY_ASSIGN(reader_, Reader::Open(std::move(source), open));
    preamble_ = reader_->preamble();
    if (preamble_.layout != Layout::kSegments) {
      return Status(Code::kUnsupported,
                    fmt::format("only files in segments are edited in place, "
                                "not {} ones",
                                Name(preamble_.layout)))
          .Of(path_);
    }
    if (version_1()) {
      // Edits compute where data may begin from the block size.
      if (preamble_.data_start % kSegmentBlockBytes != 0) {
        return Status(Code::kUnsupported, "segments do not begin at blocks")
            .Of(path_);
      }
      return Status();
    }
    // Check the bounds in the head itself, not those of the two files joined.
    if (head().data_file.empty()) return Status();
    const std::string& name = head().data_file;
    if (name.find('/') != name.npos || name == "..") {
      return Status(Code::kUnsupported,
                    "data file is in another folder, and is left alone")
          .Of(path_);
    }
    const std::string folder = path_.substr(0, path_.rfind('/') + 1);
    HAULWAY_ASSIGN(data_,
                   EditableFile::Open(folder + name, options_.durability));
    return Status();
  }

  // Writes the edit. Until the head is written, the new bytes go only to places
  // that the old file does not use.
  Status Write() {
    if (version_1()) {
      HAULWAY_ASSIGN(const bool fits, FitsVersion1());
      if (fits) return AppendToVersion1();
      ToVersion2();
    } else {
      HAULWAY_TRY(SettleHead());
    }
    bool rewrite = from_version_1_ || !plan_.renamed().empty() ||
                   (plan_.append().long_dims() && !preamble_.tagged);
    if (!rewrite) {
      const bool tagged = preamble_.tagged;
      HAULWAY_ASSIGN(
          const bool index_fits,
          MakeRoom(&SegmentHead::index, plan_.append().index_bytes(tagged),
                   kRoomInIndex));
      HAULWAY_ASSIGN(const bool headers_fit,
                     MakeRoom(&SegmentHead::headers,
                              plan_.append().header_bytes(), kRoomInHeaders));
      rewrite = !index_fits || !headers_fit;
    }
    EncodedRows kept;
    const bool tagged = preamble_.tagged || plan_.append().long_dims();
    if (rewrite) {
      HAULWAY_ASSIGN(const auto rows, plan_.KeptRows(*reader_));
      kept = EncodeRows(rows, tagged);
    }
    HAULWAY_TRY(Place(rewrite, kept));
    // From here on, head() describes the new file.
    preamble_.tagged = tagged;
    preamble_.flags |= kFlagSegments | (tagged ? kFlagTagged : 0);
    HAULWAY_TRY(WriteData());
    HAULWAY_TRY(WriteRows(std::move(kept)));
    if (plan_.notes().has_value()) {
      HAULWAY_TRY(file_->WriteAt(head().notes->start, *plan_.notes()));
    }
    if (data_ != nullptr) HAULWAY_TRY(data_->Flush());
    HAULWAY_TRY(file_->Flush());
    committing_ = true;
    HAULWAY_TRY(WriteHead());
    return Status();
  }

  Status WriteHead() {
    HAULWAY_TRY(file_->WriteAt(0, EncodeHead(preamble_)));
    return file_->Flush();
  }

  // Completes the head. After an interruption it may still announce an
  // insertion of blocks. The announcement is valid only while the file has the
  // size it names.
  Status SettleHead() {
    std::vector<std::byte> now(kSegmentHeadBytes);
    HAULWAY_TRY(reader_->source()->ReadAt(0, now));
    if (now == EncodeHead(preamble_)) return Status();
    return WriteHead();
  }

  // Returns where the last header ends.
  Result<uint64_t> HeadersUsed() const {
    const auto& entries = reader_->tensor_index().entries;
    if (entries.empty()) return preamble_.header_start;
    const auto last = static_cast<uint32_t>(entries.size() - 1);
    HAULWAY_ASSIGN(const auto header, reader_->HeaderOf(last, {}));
    return entries[last].header_offset + header.bytes.size();
  }

  Result<bool> FitsVersion1() const {
    if (!plan_.renamed().empty() || plan_.notes().has_value() ||
        plan_.append().long_dims()) {
      return false;
    };
    const uint64_t index = preamble_.index_offset + preamble_.index_bytes +
                           plan_.append().index_bytes(/*tagged=*/false);
    HAULWAY_ASSIGN(const uint64_t used, HeadersUsed());
    const uint64_t headers = used + plan_.append().header_bytes();
    return index <= preamble_.header_start && headers <= preamble_.header_end;
  }

  Status AppendToVersion1() {
    HAULWAY_TRY(WriteData());
    HAULWAY_ASSIGN(const uint64_t header, HeadersUsed());
    std::vector<std::byte> index;
    std::vector<std::byte> headers;
    plan_.append().AddTo(header - preamble_.header_start, /*tagged=*/false,
                         &index, &headers);
    HAULWAY_TRY(file_->WriteAt(header, headers));
    HAULWAY_TRY(
        file_->WriteAt(preamble_.index_offset + preamble_.index_bytes, index));
    HAULWAY_TRY(file_->Flush());
    preamble_.index_bytes += index.size();
    // The layout section between these fields does not change.
    std::vector<std::byte> changed(kChangedTo - kChangedFrom);
    HAULWAY_TRY(reader_->source()->ReadAt(kChangedFrom, changed));
    std::vector<std::byte> numbers;
    ByteWriter out(&numbers);
    out.U64(preamble_.data_bytes);
    out.U64(0);
    out.U64(preamble_.count);
    std::ranges::copy(numbers, changed.begin());
    numbers.clear();
    out.U64(preamble_.index_bytes);
    std::ranges::copy(numbers, changed.end() - 8);
    committing_ = true;
    HAULWAY_TRY(file_->WriteAt(kChangedFrom, changed));
    return file_->Flush();
  }

  // Converts the head to version 2. Index and headers are written anew, because
  // the head is longer.
  void ToVersion2() {
    SegmentHead next;
    next.data.start = preamble_.data_start;
    next.data.data_length =
        reader_->tensor_index().end_mark - preamble_.data_start;
    next.data.end = next.data.start + next.data.data_length + kEndMarkBytes;
    preamble_.segments = next;
    from_version_1_ = true;
  }

  // Returns whether blocks may be inserted. In version 1, nothing may change
  // before the new head is written.
  Result<bool> CanInsert() {
    if (options_.room == SegmentRoom::kMove || from_version_1_) return false;
    if (file_->IsMapped()) {
      if (options_.room == SegmentRoom::kAuto) return false;
      return Status(Code::kUnsupported,
                    "blocks that are inserted would move the bytes below "
                    "tensors or a checkpoint that this process has mapped")
          .Of(path_);
    }
    if (file_->CanInsert(head().block_bytes)) return true;
    if (options_.room == SegmentRoom::kAuto) return false;
    return Status(Code::kUnsupported,
                  "this file system cannot insert blocks into a file")
        .Of(path_);
  }

  // Makes room for `need` more bytes in the segment, by inserting blocks behind
  // it if necessary. Returns false if that is not possible.
  Result<bool> MakeRoom(Segment SegmentHead::*member, uint64_t need,
                        uint64_t room_each) {
    const Segment& segment = head().*member;
    if (segment.end - segment.start - segment.data_length >= need) return true;
    return InsertBlocks(segment.end, need + options_.room_for * room_each);
  }

  // Inserts blocks for `bytes` at `at`: a segment that ends there grows, one
  // that begins there moves; the content does not change. Returns false if
  // blocks cannot be inserted. Requires: head() is the head of the file.
  Result<bool> InsertBlocks(uint64_t at, uint64_t bytes) {
    HAULWAY_ASSIGN(const bool can, CanInsert());
    if (!can || (data_ == nullptr && at > head().data.start)) return false;
    HAULWAY_ASSIGN(const uint64_t size, file_->Size());
    bytes = RoundUp(bytes, head().block_bytes);
    if (at >= size || bytes > INT64_MAX / 2 - size) return false;
    head().growth = SegmentGrowth{at, bytes, size};
    HAULWAY_TRY(WriteHead());
    const Status inserted = file_->Insert(at, bytes);
    if (!inserted.ok()) {
      head().growth.reset();
      HAULWAY_TRY(WriteHead());
      const bool cannot = inserted.code() == Code::kUnsupported ||
                          inserted.os_error() == EINVAL;
      if (!cannot || options_.room == SegmentRoom::kInsert) return inserted;
      return false;
    }
    // Update the sizes before anything can fail, because CutBack() truncates
    // the file to them.
    size_before_ += bytes;
    if (data_ == nullptr) data_size_before_ += bytes;
    stats_.inserted_bytes += bytes;
    HAULWAY_TRY(file_->Flush());
    preamble_.segments = Grown(head());
    HAULWAY_TRY(WriteHead());
    return true;
  }

  // Chooses places for the parts that are written anew. Neither the old nor the
  // new file uses these places.
  Status Place(bool rewrite, const EncodedRows& kept) {
    const uint64_t block = head().block_bytes;
    uint64_t index_bytes = 0;
    uint64_t header_bytes = 0;
    uint64_t note_bytes = 0;
    if (rewrite) {
      const bool tagged = preamble_.tagged || plan_.append().long_dims();
      index_bytes =
          RoundUp(kept.index.size() + plan_.append().index_bytes(tagged) +
                      options_.room_for * kRoomInIndex,
                  block);
      header_bytes =
          RoundUp(kept.headers.size() + plan_.append().header_bytes() +
                      options_.room_for * kRoomInHeaders,
                  block);
    }
    if (plan_.notes().has_value()) {
      note_bytes = RoundUp(plan_.notes()->size(), block);
    }
    const uint64_t bytes = index_bytes + header_bytes + note_bytes;
    if (bytes == 0) return Status();
    HAULWAY_ASSIGN(uint64_t at, PlaceFor(bytes));
    if (rewrite) {
      head().index = {at, at + index_bytes, 0, 0};
      at += index_bytes;
      head().headers = {at, at + header_bytes, 0, 0};
      at += header_bytes;
      stats_.moved = true;
    }
    if (plan_.notes().has_value()) {
      head().notes = Segment{at, at + note_bytes, plan_.notes()->size(),
                             Crc32(0, *plan_.notes())};
    }
    return Status();
  }

  Result<uint64_t> PlaceFor(uint64_t bytes) {
    const uint64_t block = head().block_bytes;
    const std::vector<Range> taken = Taken();
    uint64_t end = block;
    for (const Range& range : taken) end = std::max(end, range.end);
    end = RoundUp(end, block);
    // Earlier edits may have left space.
    const auto place = FindPlace(bytes, block, block, end, taken);
    if (place.has_value()) return *place;
    if (data_ != nullptr) return end;
    const uint64_t at = head().data.start;
    const SegmentHead before = head();
    HAULWAY_ASSIGN(const bool inserted, InsertBlocks(at, bytes));
    if (!inserted) return end;
    // The inserted blocks must not count as room of the segment that ends
    // there.
    if (before.index.end == at) head().index.end = at;
    if (before.headers.end == at) head().headers.end = at;
    if (before.notes.has_value() && before.notes->end == at) {
      head().notes->end = at;
    }
    return at;
  }

  // Returns the ranges that the file uses, by head() and the reader.
  std::vector<Range> Taken() {
    std::vector<Range> taken;
    // Index and headers of version 1, wherever they are.
    if (from_version_1_) taken.push_back({0, head().data.start});
    taken.push_back({head().index.start, head().index.end});
    taken.push_back({head().headers.start, head().headers.end});
    if (head().notes.has_value()) {
      taken.push_back({head().notes->start, head().notes->end});
    }
    if (data_ != nullptr) return taken;
    // List each tensor: moved parts may lie between tensors.
    const uint64_t start = head().data.start;
    const uint64_t was = reader_->preamble().data_start;
    for (const IndexEntry& entry : reader_->tensor_index().entries) {
      const uint64_t at = start + (entry.data_offset - was);
      taken.push_back({at, at + entry.data_bytes});
    }
    taken.push_back({start + head().data.data_length, head().data.end});
    return taken;
  }

  // Writes index entries and headers: those of appended tensors after the
  // existing ones, which are written too if they get a new place.
  Status WriteRows(EncodedRows rows) {
    Segment& index = head().index;
    Segment& headers = head().headers;
    plan_.append().AddTo(headers.data_length + rows.headers.size(),
                         preamble_.tagged, &rows.index, &rows.headers);
    HAULWAY_TRY(
        file_->WriteAt(headers.start + headers.data_length, rows.headers));
    HAULWAY_TRY(file_->WriteAt(index.start + index.data_length, rows.index));
    headers.data_length += rows.headers.size();
    index.data_length += rows.index.size();
    index.crc32 = Crc32(index.crc32, rows.index);
    return Status();
  }

  // Writes the data behind the old end mark, because the old file needs it, and
  // behind any segment there.
  Status WriteData() {
    if (plan_.append().empty()) return Status();
    const uint64_t start = data_start();
    const uint64_t length = version_1()
                                ? reader_->tensor_index().end_mark - start
                                : head().data.data_length;
    uint64_t at = start + length + kEndMarkBytes;
    if (data_ == nullptr && !version_1()) {
      at = std::max({at, head().index.end, head().headers.end,
                     head().notes.has_value() ? head().notes->end : 0});
    }
    HAULWAY_ASSIGN(
        const uint64_t end,
        plan_.append().WriteData(data_file(), start, at, options_.alignment,
                                 options_.threads));
    preamble_.data_bytes += plan_.append().data_bytes();
    preamble_.count += plan_.append().plans().size();
    if (version_1()) return Status();
    head().data.data_length = end - start;
    head().data.end = end + kEndMarkBytes;
    return Status();
  }

  // Truncates the file to its old end after a failure before the head was
  // written. Ignores errors, because the bytes behind the old end do no harm.
  void CutBack() {
    if (committing_) return;
    const auto cut = [](EditableFile& file, uint64_t bytes) {
      const auto size = file.Size();
      if (size.ok() && *size > bytes) (void)file.Truncate(bytes);
    };
    cut(*file_, size_before_);
    if (data_ != nullptr) cut(*data_, data_size_before_);
  }

  const std::string& path_;
  const TensorizerEditOptions& options_;
  std::unique_ptr<EditableFile> file_;
  // Null if the data is in the same file.
  std::unique_ptr<EditableFile> data_;
  std::unique_ptr<const Reader> reader_;  // Reads the old file.
  // The preamble of the old file and, from Place() on, of the new one.
  Preamble preamble_;
  bool from_version_1_ = false;
  bool committing_ = false;
  SegmentEditPlan plan_;
  uint64_t size_before_ = 0;
  uint64_t data_size_before_ = 0;
  TensorizerEditStats stats_;
};

}  // namespace

}  // namespace haulway::tensorizer

namespace haulway {

Result<TensorizerEditStats> EditTensorizer(
    const std::string& path, const TensorizerEdit& edit,
    const TensorizerEditOptions& options) {
  auto stats = tensorizer::Editor(path, edit, options).Run();
  if (!stats.ok()) return std::move(stats).status().Of(path);
  return stats;
}

}  // namespace haulway
