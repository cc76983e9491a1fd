// Design: the file header has the version, which determines where index and
// headers are: between the data (1 to 4) or in segments (5). Opening reads the
// index and checks each tensor's place against the file and its neighbours.
// Headers between the data are read with it as frames; those in segments are
// read at once. Digests cover header and data together, so the header's bytes
// are kept for the check of the payload. Each salt's key is derived once.
//
// Alternative not taken: read all headers between the data on opening. That
// would take one request per tensor; they are read with their payloads instead.
// The version alone does not determine the digest rule, so where two are
// possible, either may match.

#include "tensorizer/tensorizer_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/digest.h"
#include "base/text.h"
#include "tensorizer/segment_notes.h"
#include "tensorizer/tensorizer_tree.h"

namespace haulway::tensorizer {

namespace {

// A released file has only the file header and the index before the first
// tensor, so most files open with two reads: these bytes and the end mark.
constexpr uint64_t kFirstReadBytes = kIndexOffset + kReservedIndexBytes;
// Headers with names of usual length are shorter.
constexpr uint64_t kHeaderGuess = 4 * kKiB;

Status CheckKeyOf(const Preamble& preamble, const EncryptionKey& key) {
  if (key.empty()) return Status();
  HAULWAY_TRY(CheckKey(key));
  if (preamble.version < 3) {
    return Status(Code::kAuth,
                  fmt::format("a key was given, but version {} of the file "
                              "predates encryption",
                              preamble.version));
  }
  if (!preamble.encrypted) {
    return Status(Code::kAuth,
                  "a key was given, but the file is not flagged as encrypted");
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<const Reader>> Reader::Open(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  std::unique_ptr<Reader> reader(new Reader(std::move(source), options));
  HAULWAY_TRY(reader->ReadAll());
  return std::unique_ptr<const Reader>(std::move(reader));
}

Status Reader::ReadAll() {
  HAULWAY_TRY(ReadIndex());
  HAULWAY_ASSIGN(NamedTree tree,
                 BuildTree(tensors_.entries, options_.limits, &arena_));
  if (!interleaved()) HAULWAY_TRY(ReadHeaders());
  // For a remote source this takes an extra request, so only verifying checks
  // it.
  if (options_.strictness == Strictness::kStrict &&
      !source_->remote_stats().has_value()) {
    HAULWAY_TRY(CheckEndMark());
  }
  if (preamble_.encrypted && interleaved()) HAULWAY_TRY(ReadAuthentication());
  index_.format = Format::kTensorizer;
  index_.offsets_computed = true;
  index_.root = tree.root;
  ListTensors(std::move(tree.names));
  ListFacts();
  return ListNotes();
}

Status Reader::ReadIndex() {
  HAULWAY_ASSIGN(head_,
                 AllocateBuffer(std::min(source_->size(), kFirstReadBytes)));
  HAULWAY_TRY(source_->ReadAt(0, head_.mutable_bytes()));
  HAULWAY_ASSIGN(preamble_,
                 ParsePreamble(head_.bytes().subspan(
                                   0, std::min(head_.size(), kPreambleBytes)),
                               source_->size(), options_));
  HAULWAY_TRY(CheckKeyOf(preamble_, options_.key));
  HAULWAY_TRY(ReadRegions());
  HAULWAY_TRY(CheckSums());
  if (preamble_.segments.has_value()) HAULWAY_TRY(JoinDataFile());
  HAULWAY_ASSIGN(tensors_, ParseIndex(index_block_.bytes(), source_->size(),
                                      options_, &preamble_));
  return Status();
}

// Reads the remaining regions before the data in one request.
Status Reader::ReadRegions() {
  struct Region {
    uint64_t offset;
    uint64_t bytes;
    Buffer* out;
  };
  std::vector<Region> regions = {
      {preamble_.index_offset, preamble_.index_bytes, &index_block_}};
  const uint64_t header_bytes = preamble_.header_end - preamble_.header_start;
  // Version 1 has only the end of the segment, which may be far away.
  const bool known = preamble_.segments.has_value() ||
                     header_bytes / kHeaderGuess <= preamble_.count + 16;
  if (preamble_.layout == Layout::kSegments && known) {
    regions.push_back({preamble_.header_start, header_bytes, &header_block_});
  }
  if (preamble_.segments.has_value() && preamble_.segments->notes.has_value()) {
    const Segment& notes = *preamble_.segments->notes;
    regions.push_back({notes.start, notes.data_length, &notes_block_});
  }
  std::vector<ReadRequest> requests;
  for (const Region& region : regions) {
    if (region.bytes > options_.limits.max_directory_bytes) {
      return Status(
                 Code::kLimit,
                 fmt::format("{} bytes of metadata pass "
                             "max_directory_bytes {}",
                             region.bytes, options_.limits.max_directory_bytes))
          .At(region.offset);
    }
    if (RangeFits(region.offset, region.bytes, head_.size())) {
      *region.out = head_.Slice(region.offset, region.bytes);
      continue;
    }
    HAULWAY_ASSIGN(*region.out, AllocateBuffer(region.bytes));
    const std::span<std::byte> out = region.out->mutable_bytes();
    const uint64_t have =
        head_.size() - std::min<uint64_t>(region.offset, head_.size());
    std::ranges::copy(head_.bytes().subspan(head_.size() - have), out.begin());
    requests.push_back({region.offset + have, out.subspan(have)});
  }
  if (requests.empty()) return Status();
  return source_->ReadMany(requests);
}

// Applies rule S10.
Status Reader::CheckSums() const {
  if (!preamble_.segments.has_value()) return Status();
  const auto check = [](std::string_view name, const Segment& segment,
                        const Buffer& bytes) -> Status {
    const uint32_t found = Crc32(0, bytes.bytes());
    if (found == segment.crc32) return Status();
    return Status(Code::kMismatch,
                  fmt::format("checksum is wrong: expected {:08x}, found "
                              "{:08x}",
                              segment.crc32, found))
        .At(segment.start)
        .In(fmt::format("{} segment", name));
  };
  HAULWAY_TRY(check("index", preamble_.segments->index, index_block_));
  if (!preamble_.segments->notes.has_value()) return Status();
  return check("notes", *preamble_.segments->notes, notes_block_);
}

// Applies rule S06 to data in a separate file, and appends that file's source.
Status Reader::JoinDataFile() {
  const SegmentHead& segments = *preamble_.segments;
  if (segments.data_file.empty()) return Status();
  auto opened = source_->OpenNeighbour(segments.data_file);
  if (!opened.ok()) {
    return std::move(opened).status().In(
        fmt::format("data file {}", Quote(segments.data_file)));
  }
  const std::shared_ptr<const ByteSource> data = *std::move(opened);
  const uint64_t data_bytes = data->size();
  if (segments.data.end > data_bytes) {
    return Status(Code::kTruncated,
                  fmt::format("data file is too short: expected {} bytes or "
                              "more, found {}",
                              segments.data.end, data_bytes))
        .At(data_bytes)
        .In(fmt::format("data file {}", Quote(segments.data_file)));
  }
  const uint64_t own_bytes = source_->size();
  const std::string name(source_->name());
  HAULWAY_ASSIGN(Concatenation joined,
                 ConcatenateSources({source_, data}, name));
  source_ = std::move(joined.source);
  preamble_.data_start += joined.starts[1];
  preamble_.data_end += joined.starts[1];
  const std::string_view whole = name;
  const std::string_view own = whole.substr(whole.rfind('/') + 1);
  index_.parts = {
      {arena_.Copy(own), 0, own_bytes},
      {arena_.Copy(segments.data_file), joined.starts[1], data_bytes}};
  return Status();
}

// Reads the headers, if they were not read with the index, in two reads: up to
// the length field of the last header, then the rest of that header.
Status Reader::ReadHeaderBlock(uint64_t* begin) {
  const std::vector<IndexEntry>& entries = tensors_.entries;
  if (header_block_.size() != 0) {
    *begin = preamble_.header_start;
    return Status();
  }
  *begin = entries.front().header_offset;
  const uint64_t last = entries.back().header_offset;
  const uint64_t limit = preamble_.layout == Layout::kSegments
                             ? preamble_.header_end
                             : entries.front().data_offset;
  if (limit < last || limit - last < 8 ||
      limit - *begin > options_.limits.max_directory_bytes) {
    return Status(Code::kCorrupt, "headers run into the data").At(last);
  }
  std::array<std::byte, 8> length_bytes;
  HAULWAY_TRY(source_->ReadAt(last, length_bytes));
  const uint64_t last_length = ByteCursor(length_bytes).U64();
  if (last_length > limit - last) {
    return Status(Code::kCorrupt,
                  fmt::format("header is too long: expected at most {}, found "
                              "{}",
                              limit - last, last_length))
        .At(last);
  }
  HAULWAY_ASSIGN(header_block_, AllocateBuffer(last - *begin + last_length));
  return source_->ReadAt(*begin, header_block_.mutable_bytes());
}

Status Reader::ReadHeaders() {
  const std::vector<IndexEntry>& entries = tensors_.entries;
  if (entries.empty()) return Status();
  uint64_t begin = 0;
  HAULWAY_TRY(ReadHeaderBlock(&begin));
  if (entries.back().header_offset - begin > header_block_.size()) {
    return Status(Code::kCorrupt, "headers run past their segment")
        .At(entries.back().header_offset);
  }
  headers_.reserve(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    const uint64_t offset = entries[i].header_offset - begin;
    const uint64_t room =
        (i + 1 < entries.size() ? entries[i + 1].header_offset - begin
                                : header_block_.size()) -
        offset;
    const auto bytes = header_block_.bytes().subspan(offset, room);
    const uint64_t length = ByteCursor(bytes).U64();
    if (length > room || length < 8) {
      return Status(Code::kCorrupt,
                    fmt::format("header has a wrong length: expected at most "
                                "{}, found {}",
                                room, length))
          .At(entries[i].header_offset)
          .In(fmt::format("header of {}", Quote(entries[i].name)));
    }
    headers_.push_back(bytes.subspan(0, length));
    HAULWAY_TRY(HeaderOf(static_cast<uint32_t>(i), {}).status());
  }
  return Status();
}

// Applies rule E01.
Status Reader::CheckEndMark() const {
  if (!RangeFits(tensors_.end_mark, kEndMarkBytes, source_->size())) {
    return Status(
               Code::kTruncated,
               fmt::format("end mark needs {} bytes, {} remain", kEndMarkBytes,
                           source_->size() - tensors_.end_mark))
        .At(tensors_.end_mark);
  }
  std::array<std::byte, kEndMarkBytes> mark;
  HAULWAY_TRY(source_->ReadAt(tensors_.end_mark, mark));
  if (ByteCursor(mark).U64() != 0) {
    return Status(Code::kCorrupt, "no end mark after the last tensor")
        .At(tensors_.end_mark);
  }
  return Status();
}

Status Reader::ReadAuthentication() {
  uint64_t at = tensors_.end_mark;
  if (!CheckedAdd(at, kEndMarkBytes, &at) || at >= source_->size()) {
    return Status();
  }
  const uint64_t count = tensors_.entries.size();
  HAULWAY_ASSIGN(authentication_bytes_,
                 AllocateBuffer(std::min(source_->size() - at,
                                         LongestAuthentication(count))));
  HAULWAY_TRY(source_->ReadAt(at, authentication_bytes_.mutable_bytes()));
  auto record = ParseAuthentication(authentication_bytes_.bytes(), count,
                                    options_.limits);
  if (!record.ok()) return std::move(record).status().At(at);
  authentication_ = *record;
  if (!authentication_.has_value() || keys_.empty()) return Status();
  CryptBlock block;
  block.derivation = authentication_->derivation;
  HAULWAY_ASSIGN(const Secret key, keys_.KeyFor(block));
  Secret metadata_key = MetadataKey(key);
  HAULWAY_TRY(
      CheckIndexTag(metadata_key, *authentication_,
                    head_.bytes().subspan(
                        0, preamble_.index_offset + preamble_.index_bytes)));
  metadata_key_ = std::move(metadata_key);
  return Status();
}

Result<Reader::Header> Reader::AuthenticHeaderOf(
    uint32_t row, std::span<const std::byte> frame) const {
  HAULWAY_ASSIGN(const Header header, HeaderOf(row, frame));
  const auto check = [&]() -> Status {
    if (authenticated()) {
      return CheckHeaderTag(metadata_key_, *authentication_, row, header.bytes);
    }
    if (keys_.empty() || header.crypt.cipher == Cipher::kNone) return Status();
    HAULWAY_ASSIGN(const Secret key, keys_.KeyFor(header.crypt));
    if (!IsMarked(MetadataKey(key), header.crypt.nonce)) return Status();
    return Status(Code::kAuth, "authentication record of the file was removed");
  };
  Status status = check();
  if (!status.ok()) {
    return std::move(status).In(
        fmt::format("header of {}", Quote(tensors_.entries[row].name)));
  }
  return header;
}

Result<Reader::Header> Reader::HeaderOf(
    uint32_t row, std::span<const std::byte> frame) const {
  const IndexEntry& entry = tensors_.entries[row];
  const auto parse = [&]() -> Result<Header> {
    Header header;
    header.bytes = interleaved() ? frame : headers_[row];
    HAULWAY_ASSIGN(
        header.fields,
        ParseTensorHeader(header.bytes, entry, preamble_, options_.strictness));
    if (preamble_.encrypted) {
      HAULWAY_ASSIGN(header.crypt,
                     ParseCryptBlock(header.fields.crypt, entry.data_bytes,
                                     options_.limits));
    }
    return header;
  };
  auto header = parse();
  if (!header.ok()) {
    return std::move(header).status().In(
        fmt::format("header of {}", Quote(entry.name)));
  }
  return header;
}

Status Reader::CheckFrame(uint32_t storage, std::span<const std::byte> before,
                          std::span<const std::byte>) const {
  if (!interleaved()) return Status();  // Checked when the headers were read.
  return AuthenticHeaderOf(storage, before).status();
}

Status Reader::Decode(uint32_t storage, std::span<const std::byte> frame,
                      uint64_t offset, std::span<const std::byte> stored,
                      std::span<std::byte> out) const {
  HAULWAY_ASSIGN(const Header header, HeaderOf(storage, frame));
  const auto decrypt = [&]() -> Status {
    HAULWAY_ASSIGN(const Secret key, keys_.KeyFor(header.crypt));
    return DecryptUnits(header.crypt, key, offset, stored, out);
  };
  Status status = decrypt();
  if (!status.ok()) {
    return std::move(status).In(Quote(index_.entries[storage].name));
  }
  return status;
}

Result<uint64_t> Reader::UnitBytes(uint32_t storage,
                                   std::span<const std::byte> frame) const {
  HAULWAY_ASSIGN(const Header header, HeaderOf(storage, frame));
  return header.crypt.chunk_bytes;
}

Result<std::vector<PayloadDigest>> Reader::Digests(
    uint32_t storage, std::span<const std::byte> before,
    std::span<const std::byte>) const {
  HAULWAY_ASSIGN(const Header header, HeaderOf(storage, before));
  std::vector<PayloadDigest> digests;
  const auto add = [&](HashRule rule) {
    PayloadDigest& digest = digests.emplace_back();
    digest.prefix = HashedHeader(header.bytes, header.fields, rule);
    digest.crc32 = header.fields.crc32;
    digest.sha256 = header.fields.sha256;
    // The 3.0 branches store 0 for tensors without data (rule X06).
    if (rule == HashRule::kWithoutHashes && digest.crc32 == uint32_t{0} &&
        tensors_.entries[storage].data_bytes == 0) {
      digest.crc32.reset();
    }
  };
  const HashRule rule = preamble_.hash_rule;
  if (rule != HashRule::kWithoutHashes) add(HashRule::kValuesZeroed);
  if (rule != HashRule::kValuesZeroed) add(HashRule::kWithoutHashes);
  return digests;
}

void Reader::ListTensors(std::vector<std::string_view> names) {
  const size_t count = tensors_.entries.size();
  strides_.resize(tensors_.dims.size());
  index_.entries.reserve(count);
  index_.tensors.reserve(count);
  index_.storages.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    const IndexEntry& entry = tensors_.entries[i];
    const std::span<int64_t> strides =
        std::span(strides_).subspan(entry.first_dim, entry.rank);
    TensorInfo tensor;
    tensor.kind = entry.meta ? TensorKind::kMeta : TensorKind::kDense;
    tensor.dtype = entry.dtype;
    if (!entry.meta || !options_.keep_meta) tensor.storage = i;
    tensor.shape = tensors_.shape(entry);
    tensor.strides = strides;
    tensor.nbytes = entry.nbytes;
    int64_t stride = 1;
    for (size_t d = entry.rank; d-- > 0;) {
      strides[d] = stride;
      stride *= std::max<int64_t>(tensor.shape[d], 1);
    }
    StorageInfo storage;
    storage.key = names[i];
    storage.location = "cpu";
    storage.dtype = entry.dtype;
    storage.nbytes = entry.nbytes;
    storage.frame_offset =
        interleaved() ? entry.header_offset : entry.data_offset;
    storage.offset = entry.data_offset;
    storage.stored_bytes = entry.data_bytes;
    storage.frame_end = entry.data_offset + entry.data_bytes;
    if (entry.meta) {
      storage.encoding = Encoding::kZeros;
    } else if (preamble_.encrypted && entry.data_bytes != 0) {
      storage.encoding = Encoding::kEncrypted;
    }
    index_.entries.push_back({names[i], i});
    index_.tensors.push_back(tensor);
    index_.storages.push_back(storage);
  }
}

void Reader::ListFacts() {
  uint64_t meta = 0;
  for (const IndexEntry& entry : tensors_.entries) meta += entry.meta ? 1 : 0;
  index_.facts = {
      {"version", uint64_t{preamble_.version}},
      {"layout", std::string(Name(preamble_.layout))},
      {"flags", preamble_.flags},
      {"encrypted", preamble_.encrypted},
      {"authentication", std::string(authentication())},
      {"index_bytes", preamble_.index_bytes},
      {"data_bytes", preamble_.data_bytes},
      {"tensors", uint64_t{tensors_.entries.size()}},
      {"meta_tensors", meta},
  };
  if (preamble_.layout != Layout::kSegments) return;
  const bool ours = preamble_.segments.has_value();
  index_.facts.push_back({"segments_version", uint64_t{ours ? 2u : 1u}});
  if (ours && !preamble_.segments->data_file.empty()) {
    index_.facts.push_back({"data_file", preamble_.segments->data_file});
  }
}

Status Reader::ListNotes() {
  if (!preamble_.segments.has_value()) return Status();
  std::vector<Fact>& metadata = index_.metadata.emplace();
  if (!preamble_.segments->notes.has_value()) return Status();
  auto notes = ParseNotes(notes_block_.bytes(), options_.limits);
  if (!notes.ok()) return std::move(notes).status().In("notes segment");
  for (auto& [key, value] : *notes) {
    metadata.push_back({std::move(key), std::move(value)});
  }
  return Status();
}

Result<std::unique_ptr<const FormatReader>> OpenTensorizer(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  HAULWAY_ASSIGN(auto reader, Reader::Open(std::move(source), options));
  return std::unique_ptr<const FormatReader>(std::move(reader));
}

}  // namespace haulway::tensorizer
