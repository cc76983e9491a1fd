#include "haulway/tensorizer_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/digest.h"
#include "base/sha256.h"
#include "base/text.h"
#include "haulway/limits.h"
#include "tensorizer/tensorizer_authentication.h"
#include "tensorizer/tensorizer_crypt.h"
#include "tensorizer/tensorizer_dtype.h"
#include "tensorizer/tensorizer_encode.h"
#include "tensorizer/tensorizer_name.h"
#include "tensorizer/tensorizer_tree.h"

namespace haulway {

namespace tensorizer {

namespace {

constexpr uint64_t kShortDims = uint64_t{1} << 32;
constexpr uint64_t kIndexStep = 4 * kKiB;

struct TensorPlan {
  TensorFields fields;
  HeaderFields header;
  CryptBlock crypt;  // Without its MACs.
  uint64_t macs = 0;
};

// Where the tag of a header goes, and what it is made with.
struct HeaderTagging {
  const Secret& key;
  uint64_t row = 0;
  HeaderTag* tag = nullptr;  // Null: none is wanted.
};

// Digests, and encrypts if there is a key, one tensor.
class Encoder : public RecordEncoder {
 public:
  Encoder(const TensorPlan& plan, const Secret& key,
          const HeaderTagging& tagging)
      : plan_(plan),
        key_(key),
        tagging_(tagging),
        header_(plan.fields, plan.header) {
    const std::vector<std::byte> covered = header_.Covered();
    sha256_.Update(covered);
    crc32_ = Crc32(0, covered);
    macs_.resize(plan.macs * kMacBytes);
  }

  uint64_t unit_bytes() const override {
    return plan_.macs == 0 ? 1 : kChunkBytes;
  }
  std::span<const std::byte> Encode(std::span<const std::byte> piece,
                                    std::span<std::byte> scratch) override {
    sha256_.Update(piece);
    if (plan_.macs == 0) {
      crc32_ = Crc32(crc32_, piece);
      return piece;
    }
    EncryptUnits(plan_.crypt, key_, done_, piece, scratch,
                 std::span(macs_).subspan(done_ / kChunkBytes * kMacBytes));
    done_ += piece.size();
    return scratch;
  }
  void Finish(std::span<std::byte> out) override {
    header_.SetHashes(crc32_, sha256_.Finish());
    if (!plan_.header.crypt_block.empty()) {
      CryptBlock crypt = plan_.crypt;
      crypt.macs = macs_;
      header_.SetCryptBlock(EncodeCryptBlock(crypt));
    }
    std::ranges::copy(header_.bytes(), out.begin());
    if (tagging_.tag != nullptr) {
      *tagging_.tag = TagHeader(tagging_.key, tagging_.row, header_.bytes());
    }
  }

 private:
  const TensorPlan& plan_;
  const Secret& key_;
  const HeaderTagging tagging_;
  EncodedHeader header_;
  Sha256 sha256_;
  uint32_t crc32_ = 0;
  std::vector<std::byte> macs_;
  uint64_t done_ = 0;
};

class Writer : public RecordLayout {
 public:
  Writer(std::span<const TensorizerInput> tensors,
         const TensorizerOptions& options)
      : tensors_(tensors), options_(options), key_(options.key) {}

  Status Plan() {
    HAULWAY_TRY(CheckOptions());
    if (encrypted() && options_.authenticate_metadata) {
      metadata_key_ = MetadataKey(key_);
      tags_.resize(tensors_.size());
    }
    plans_.reserve(tensors_.size());
    preamble_.version = encrypted() ? 3 : 1;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      Status status = AddTensor(i);
      if (!status.ok()) {
        return std::move(status).In(fmt::format("tensor {}", i));
      }
    }
    HAULWAY_TRY(CheckNames());
    return Place();
  }

  uint64_t size() const override { return size_; }
  std::span<const FileRecord> records() const override { return records_; }
  std::span<const FixedBytes> fixed() const override { return fixed_; }
  std::unique_ptr<RecordEncoder> Start(size_t record) const override {
    HeaderTagging tagging{metadata_key_, record};
    // Each encoder has a tag of its own; two of one record write the same, one
    // after the other.
    if (authenticated()) tagging.tag = &tags_[record];
    return std::make_unique<Encoder>(plans_[record], key_, tagging);
  }
  std::vector<std::byte> Tail() const override {
    if (!authenticated()) return {};
    return EncodeAuthentication(metadata_key_, Derivation(), head_, tags_);
  }

 private:
  bool encrypted() const { return !key_.empty(); }
  bool authenticated() const { return !metadata_key_.empty(); }

  std::optional<KeyDerivation> Derivation() const {
    if (!options_.derivation.has_value()) return std::nullopt;
    return KeyDerivation{options_.derivation->operations,
                         options_.derivation->memory_bytes,
                         options_.derivation->salt};
  }

  Nonce NonceOf(size_t i) const {
    if (options_.nonce) return options_.nonce(i);
    return authenticated() ? MarkedNonce(metadata_key_) : RandomNonce();
  }

  Status CheckOptions() const {
    if (encrypted() && key_.bytes().size() != kKeyBytes) {
      return Status(Code::kInvalidArgument,
                    fmt::format("key has a wrong length: expected {} bytes, "
                                "found {}",
                                kKeyBytes, key_.bytes().size()));
    }
    if (options_.alignment == 0 || options_.alignment > kMiB) {
      return Status(Code::kInvalidArgument,
                    fmt::format("alignment is out of range: expected 1 to {}, "
                                "found {}",
                                kMiB, options_.alignment));
    }
    return Status();
  }

  Status AddTensor(size_t i) {
    const TensorizerInput& tensor = tensors_[i];
    TensorPlan& plan = plans_.emplace_back();
    TensorFields& fields = plan.fields;
    Path path;
    for (const TensorizerStep& step : tensor.path) {
      path.push_back({step.is_position, step.position, step.key});
    }
    HAULWAY_ASSIGN(fields.name, EncodeName(path));
    HAULWAY_ASSIGN(fields.dtype, EncodeDType(tensor.dtype));
    fields.type = static_cast<TensorType>(tensor.type);
    if (IsStructured(fields.name) && fields.type != TensorType::kStateDict) {
      return Status(Code::kInvalidArgument,
                    "a path of several steps names a tensor of no state dict");
    }
    if (tensor.shape.size() > 255) {
      return Status(Code::kLimit, "more than 255 dimensions");
    }
    fields.dims = tensor.shape;
    uint64_t bytes = ItemBytes(tensor.dtype);
    bool is_empty = false;
    for (const uint64_t dim : tensor.shape) {
      fields.long_dims = fields.long_dims || dim >= kShortDims;
      is_empty = is_empty || dim == 0;
      if (!CheckedMultiply(bytes, std::max<uint64_t>(dim, 1), &bytes) ||
          bytes > INT64_MAX) {
        return Status(Code::kInvalidArgument, "shape overflows");
      }
    }
    if (is_empty) bytes = 0;
    // A scalar has no shape that could tell it from a meta tensor; the
    // reference too stores its one element.
    const bool is_meta = tensor.meta && !tensor.shape.empty() && bytes != 0;
    const bool zero_scalar = tensor.meta && tensor.shape.empty();
    fields.data_bytes = is_meta ? 0 : bytes;
    if (fields.data_bytes != 0 && tensor.bytes == nullptr && !zero_scalar) {
      return Status(Code::kInvalidArgument, "tensor has no bytes");
    }
    uint32_t& version = preamble_.version;
    if (IsOpaque(tensor.dtype)) version = std::max(version, 2u);
    if (tensor.meta) version = std::max(version, 4u);
    if (encrypted() && fields.data_bytes == 0) version = std::max(version, 4u);
    if (fields.long_dims) version = 5;
    plan.header.module_index = tensor.module_index;
    if (encrypted()) Encrypt(i, &plan);
    return Status();
  }

  void Encrypt(size_t i, TensorPlan* plan) {
    const uint64_t bytes = plan->fields.data_bytes;
    if (bytes != 0) {
      plan->crypt.cipher = Cipher::kParallel;
      plan->crypt.chunk_bytes = kChunkBytes;
      plan->crypt.nonce = NonceOf(i);
      plan->crypt.derivation = Derivation();
      plan->macs = (bytes + kChunkBytes - 1) / kChunkBytes;
      plan->header.has_crc32 = false;
    }
    CryptBlock sized = plan->crypt;
    const std::vector<std::byte> macs(plan->macs * kMacBytes);
    sized.macs = macs;
    plan->header.crypt_block = EncodeCryptBlock(sized);
  }

  // What no reader would take is not written.
  Status CheckNames() const {
    std::vector<IndexEntry> entries(plans_.size());
    for (size_t i = 0; i < plans_.size(); ++i) {
      entries[i].name = plans_[i].fields.name;
    }
    TreeArena arena;
    ParseLimits limits;
    const auto tree = BuildTree(entries, limits, &arena);
    if (tree.ok()) return Status();
    return Status(Code::kInvalidArgument, tree.status().message());
  }

  Status Place() {
    const bool tagged = preamble_.version == 5;
    if (preamble_.version >= 4 && encrypted()) {
      preamble_.flags |= kFlagEncrypted;
    }
    if (tagged) preamble_.flags |= kFlagTagged;
    uint64_t index_bytes = 0;
    for (const TensorPlan& plan : plans_) {
      index_bytes += IndexEntryBytes(plan.fields, tagged);
    }
    preamble_.index_bytes = kReservedIndexBytes;
    if (index_bytes > kReservedIndexBytes) {
      preamble_.index_bytes =
          (index_bytes + kIndexStep - 1) / kIndexStep * kIndexStep;
    }
    preamble_.count = plans_.size();
    uint64_t at = kIndexOffset + preamble_.index_bytes;
    std::vector<std::byte> index;
    index.reserve(preamble_.index_bytes);
    for (size_t i = 0; i < plans_.size(); ++i) {
      TensorPlan& plan = plans_[i];
      FileRecord& record = records_.emplace_back();
      record.header_offset = at;
      uint64_t end =
          at + EncodedHeader(plan.fields, plan.header).bytes().size();
      const uint64_t over = end % options_.alignment;
      plan.header.padding = over == 0 ? 0 : options_.alignment - over;
      end += plan.header.padding;
      record.payload_offset = end;
      record.payload_bytes = plan.fields.data_bytes;
      record.bytes = tensors_[i].bytes;
      if (tensors_[i].meta && record.payload_bytes != 0) {
        record.bytes = kZeros.data();
      }
      if (!CheckedAdd(end, plan.fields.data_bytes, &at) || at > INT64_MAX) {
        return Status(Code::kInvalidArgument, "tensors are too large");
      }
      preamble_.data_bytes += plan.fields.data_bytes;
      EncodeIndexEntry(plan.fields, tagged, record.header_offset,
                       record.payload_offset, &index);
    }
    head_ = EncodePreamble(preamble_);
    head_.insert(head_.end(), index.begin(), index.end());
    head_.resize(kIndexOffset + preamble_.index_bytes);
    fixed_ = {{0, head_}, {at, std::span(kZeros).subspan(0, kEndMarkBytes)}};
    size_ = at + kEndMarkBytes;
    if (authenticated()) {
      size_ +=
          AuthenticationBytes(options_.derivation.has_value(), plans_.size());
    }
    return Status();
  }

  static constexpr std::array<std::byte, 16> kZeros{};

  const std::span<const TensorizerInput> tensors_;
  const TensorizerOptions& options_;
  const Secret key_;
  Secret metadata_key_;  // Empty: metadata is not authenticated.
  mutable std::vector<HeaderTag> tags_;
  Preamble preamble_;
  std::vector<TensorPlan> plans_;
  std::vector<FileRecord> records_;
  std::vector<std::byte> head_;
  std::vector<FixedBytes> fixed_;
  uint64_t size_ = 0;
};

}  // namespace

}  // namespace tensorizer

TensorizerDerivation NewTensorizerDerivation() {
  const tensorizer::Nonce random = tensorizer::RandomNonce();
  TensorizerDerivation derivation;
  derivation.operations = 3;
  derivation.memory_bytes = 256 * kMiB;
  std::copy_n(random.begin(), derivation.salt.size(), derivation.salt.begin());
  return derivation;
}

Result<std::unique_ptr<const RecordLayout>> LayOutTensorizer(
    std::span<const TensorizerInput> tensors,
    const TensorizerOptions& options) {
  auto writer = std::make_unique<tensorizer::Writer>(tensors, options);
  HAULWAY_TRY(writer->Plan());
  return std::unique_ptr<const RecordLayout>(std::move(writer));
}

}  // namespace haulway
