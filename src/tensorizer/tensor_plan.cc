#include "tensorizer/tensor_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/checked.h"
#include "base/digest.h"
#include "base/sha256.h"
#include "haulway/options.h"
#include "tensorizer/tensorizer_dtype.h"
#include "tensorizer/tensorizer_name.h"
#include "tensorizer/tensorizer_tree.h"

namespace haulway::tensorizer {

namespace {

constexpr uint64_t kShortDims = uint64_t{1} << 32;
constexpr std::array<std::byte, 16> kZeros{};

// An Encoder digests one tensor, and encrypts it if there is a key.
class Encoder : public PayloadEncoder {
 public:
  Encoder(const TensorPlan& plan, const Secret& key, HashRule rule)
      : plan_(plan), key_(key), header_(plan.fields, plan.header) {
    const std::vector<std::byte> covered = header_.Covered(rule);
    sha256_.Update(covered);
    crc32_ = Crc32(0, covered);
    macs_.resize(plan.macs * kMacBytes);
  }

  uint64_t unit_bytes() const override {
    return plan_.macs == 0 ? 0 : kChunkBytes;
  }
  void Digest(std::span<const std::byte> piece) override {
    sha256_.Update(piece);
    DigestRest(piece);
  }
  // Updates every digest but the SHA-256.
  void DigestRest(std::span<const std::byte> piece) {
    if (plan_.macs == 0) crc32_ = Crc32(crc32_, piece);
  }
  Sha256* sha256() { return &sha256_; }
  void Encode(std::span<const std::byte> piece,
              std::span<std::byte> out) override {
    EncryptUnits(plan_.crypt, key_, done_, piece, out,
                 std::span(macs_).subspan(done_ / kChunkBytes * kMacBytes));
    done_ += piece.size();
  }
  std::vector<std::byte> Finish() override {
    header_.SetHashes(crc32_, sha256_.Finish());
    if (!plan_.header.crypt_block.empty()) {
      CryptBlock crypt = plan_.crypt;
      crypt.macs = macs_;
      header_.SetCryptBlock(EncodeCryptBlock(crypt));
    }
    return {header_.bytes().begin(), header_.bytes().end()};
  }

 private:
  const TensorPlan& plan_;
  const Secret& key_;
  EncodedHeader header_;
  Sha256 sha256_;
  uint32_t crc32_ = 0;
  std::vector<std::byte> macs_;
  uint64_t done_ = 0;
};

Nonce NonceOf(size_t i, const TensorizerOptions& options, bool segments) {
  if (options.nonce) return options.nonce(i);
  if (segments || !options.authenticate_metadata) return RandomNonce();
  return MarkedNonce(MetadataKey(options.key));
}

// Plans the encryption of a tensor. `segments`: follow PR #170, where encrypted
// files have no CRC-32 at all.
void Encrypt(size_t i, const TensorizerOptions& options, bool segments,
             TensorPlan* plan) {
  const uint64_t bytes = plan->fields.data_bytes;
  if (bytes != 0) {
    plan->crypt.cipher = Cipher::kParallel;
    plan->crypt.chunk_bytes = kChunkBytes;
    plan->crypt.nonce = NonceOf(i, options, segments);
    plan->crypt.derivation = DerivationOf(options);
    plan->macs = (bytes + kChunkBytes - 1) / kChunkBytes;
  }
  plan->header.has_crc32 = bytes == 0 && !segments;
  CryptBlock sized = plan->crypt;
  const std::vector<std::byte> macs(plan->macs * kMacBytes);
  sized.macs = macs;
  plan->header.crypt_block = EncodeCryptBlock(sized);
}

}  // namespace

Status CheckOptions(const TensorizerOptions& options) {
  HAULWAY_TRY(CheckKey({.key = options.key, .passphrase = {}}));
  if (options.alignment == 0 || options.alignment > kMiB) {
    return Status(Code::kInvalidArgument,
                  fmt::format("alignment is out of range: expected 1 to {}, "
                              "found {}",
                              kMiB, options.alignment));
  }
  return Status();
}

Result<TensorPlan> PlanTensor(const TensorizerInput& tensor, size_t i,
                              const TensorizerOptions& options, HashRule rule,
                              uint32_t* version) {
  const bool encrypted = !options.key.empty();
  const bool segments = rule == HashRule::kWithoutHashes;
  TensorPlan plan;
  TensorFields& fields = plan.fields;
  Path path;
  for (const TensorizerStep& step : tensor.path) {
    path.push_back({step.is_position, step.position, step.key});
  }
  HAULWAY_ASSIGN(fields.name, EncodeName(path));
  HAULWAY_ASSIGN(fields.dtype, EncodeDType(tensor.dtype));
  // PR #170 writes '<' for opaque types of one byte too.
  if (segments && IsOpaque(tensor.dtype)) fields.dtype[0] = '<';
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
  // A meta scalar has no dims, so it looks like a real tensor. The reference
  // stores its one element too.
  const bool is_meta = tensor.meta && !tensor.shape.empty() && bytes != 0;
  const bool zero_scalar = tensor.meta && tensor.shape.empty();
  fields.data_bytes = is_meta ? 0 : bytes;
  if (fields.data_bytes != 0 && tensor.bytes == nullptr &&
      tensor.source == nullptr && !zero_scalar) {
    return Status(Code::kInvalidArgument, "tensor has no bytes");
  }
  plan.bytes = zero_scalar ? kZeros.data() : tensor.bytes;
  plan.source = zero_scalar ? nullptr : tensor.source;
  plan.source_offset = tensor.source_offset;
  if (IsOpaque(tensor.dtype)) *version = std::max(*version, 2u);
  if (tensor.meta) *version = std::max(*version, 4u);
  if (encrypted && fields.data_bytes == 0) *version = std::max(*version, 4u);
  if (fields.long_dims) *version = 5;
  plan.header.module_index = tensor.module_index;
  if (encrypted) Encrypt(i, options, segments, &plan);
  return plan;
}

Result<std::vector<TensorPlan>> PlanTensors(
    std::span<const TensorizerInput> tensors, size_t first,
    const TensorizerOptions& options, HashRule rule, uint32_t* version) {
  std::vector<TensorPlan> plans;
  plans.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto plan = PlanTensor(tensors[i], first + i, options, rule, version);
    if (!plan.ok()) {
      return std::move(plan).status().In(fmt::format("tensor {}", first + i));
    }
    plans.push_back(*std::move(plan));
  }
  return plans;
}

uint32_t LowestVersion(const TensorizerOptions& options) {
  if (options.layout != TensorizerLayout::kInterleaved) return 1;
  return options.key.empty() ? 1 : 3;
}

HashRule RuleOf(const TensorizerOptions& options) {
  return options.layout == TensorizerLayout::kInterleaved
             ? HashRule::kValuesZeroed
             : HashRule::kWithoutHashes;
}

Status CheckNames(std::span<const TensorPlan> plans) {
  std::vector<IndexEntry> entries(plans.size());
  for (size_t i = 0; i < plans.size(); ++i) {
    entries[i].name = plans[i].fields.name;
  }
  TreeArena arena;
  const ParseLimits limits;
  const auto tree = BuildTree(entries, limits, &arena);
  if (tree.ok()) return Status();
  return Status(Code::kInvalidArgument, tree.status().message());
}

std::unique_ptr<PayloadEncoder> EncodeTensor(const TensorPlan& plan,
                                             const Secret& key, HashRule rule) {
  return std::make_unique<Encoder>(plan, key, rule);
}

void DigestTensorsTogether(std::span<PayloadEncoder* const> encoders,
                           std::span<const std::span<const std::byte>> pieces) {
  std::vector<Sha256*> digests;
  digests.reserve(encoders.size());
  for (size_t i = 0; i < encoders.size(); ++i) {
    auto* encoder = static_cast<Encoder*>(encoders[i]);
    encoder->DigestRest(pieces[i]);
    digests.push_back(encoder->sha256());
  }
  Sha256::UpdateTogether(digests, pieces);
}

std::optional<KeyDerivation> DerivationOf(const TensorizerOptions& options) {
  if (!options.derivation.has_value()) return std::nullopt;
  return KeyDerivation{options.derivation->operations,
                       options.derivation->memory_bytes,
                       options.derivation->salt};
}

}  // namespace haulway::tensorizer
