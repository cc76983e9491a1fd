// Reads tensorizer files as checkpoints.

#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/tree.h"
#include "tensorizer/tensorizer_authentication.h"
#include "tensorizer/tensorizer_crypt.h"
#include "tensorizer/tensorizer_format.h"
#include "tensorizer/tensorizer_layout.h"

namespace haulway::tensorizer {

// A Reader is an open tensorizer file: its index and, in layouts that keep the
// headers together, its headers. Row i of entries, tensors and storages is the
// same tensor.
class Reader : public FormatReader {
 public:
  // Reads the index and the end mark. Fails by the rules of
  // docs/formats/tensorizer.md, with kAuth if a key is given and the file is
  // not encrypted, and with kInvalidArgument if the key is not valid.
  static Result<std::unique_ptr<const Reader>> Open(
      std::shared_ptr<const ByteSource> source, const OpenOptions& options);

  // Returns `reader` as a Reader; null if it is of another format.
  static const Reader* Of(const FormatReader& reader) {
    return dynamic_cast<const Reader*>(&reader);
  }

  const CheckpointIndex& index() const override { return index_; }
  const std::shared_ptr<const ByteSource>& source() const override {
    return source_;
  }
  Status CheckFrame(uint32_t storage, std::span<const std::byte> before,
                    std::span<const std::byte> after) const override;
  Status Decode(uint32_t storage, std::span<const std::byte> frame,
                uint64_t offset, std::span<const std::byte> stored,
                std::span<std::byte> out) const override;
  Result<uint64_t> UnitBytes(uint32_t storage,
                             std::span<const std::byte> frame) const override;
  bool has_digests() const override { return true; }
  Result<std::vector<PayloadDigest>> Digests(
      uint32_t storage, std::span<const std::byte> before,
      std::span<const std::byte> after) const override;

  const Preamble& preamble() const { return preamble_; }
  const TensorIndex& tensor_index() const { return tensors_; }
  bool has_key() const { return !keys_.empty(); }

  // Header and crypt block of a tensor. They refer to `frame`, which is as
  // `before` in CheckFrame().
  struct Header {
    std::span<const std::byte> bytes;
    TensorHeader fields;
    CryptBlock crypt;
  };
  Result<Header> HeaderOf(uint32_t row, std::span<const std::byte> frame) const;
  // As HeaderOf(). Fails with kAuth if the header is known not to be authentic.
  Result<Header> AuthenticHeaderOf(uint32_t row,
                                   std::span<const std::byte> frame) const;
  // Size of a header that is stored apart from its data; otherwise 0.
  uint64_t HeldHeaderBytes(uint32_t row) const {
    return headers_.empty() ? 0 : headers_[row].size();
  }
  bool has_authentication() const { return authentication_.has_value(); }
  // Returns whether the record was checked, so that the index and all headers
  // are known to be authentic.
  bool authenticated() const { return !metadata_key_.empty(); }
  // "checked", "not checked" or "none".
  std::string_view authentication() const {
    if (!has_authentication()) return "none";
    return authenticated() ? "checked" : "not checked";
  }

  // Checks rule E01: eight zeros after the last tensor. Opening does it too,
  // except for remote sources, where it would take an extra request.
  Status CheckEndMark() const;

 private:
  Reader(std::shared_ptr<const ByteSource> source, const OpenOptions& options)
      : source_(std::move(source)),
        options_(options),
        keys_(options.key, options.limits) {}

  Status ReadAll();
  Status ReadIndex();
  Status ReadRegions();
  Status CheckSums() const;
  Status JoinDataFile();
  Status ReadHeaderBlock(uint64_t* begin);
  Status ReadHeaders();
  Status ReadAuthentication();
  void ListTensors(std::vector<std::string_view> names);
  void ListFacts();
  Status ListNotes();
  bool interleaved() const { return preamble_.layout == Layout::kInterleaved; }

  std::shared_ptr<const ByteSource> source_;
  const OpenOptions options_;
  const KeyRing keys_;
  TreeArena arena_;
  Buffer head_;         // The first bytes of the file, read on opening.
  Buffer index_block_;  // The index; entries refer to it.
  Buffer notes_block_;
  Preamble preamble_;
  TensorIndex tensors_;
  std::vector<int64_t> strides_;  // Parallel to tensors_.dims.
  // Used for layouts that keep the headers together.
  Buffer header_block_;
  std::vector<std::span<const std::byte>> headers_;
  // Used for encrypted files with an authentication record, which is checked if
  // there is a key.
  Buffer authentication_bytes_;
  std::optional<AuthenticationRecord> authentication_;
  Secret metadata_key_;
  CheckpointIndex index_;
};

Result<std::unique_ptr<const FormatReader>> OpenTensorizer(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);

}  // namespace haulway::tensorizer
