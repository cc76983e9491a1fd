#include <algorithm>
#include <utility>

#include "haulway/tensorizer.h"
#include "tensor/payload_digest.h"
#include "tensorizer/tensorizer_crypt.h"
#include "tensorizer/tensorizer_name.h"
#include "tensorizer/tensorizer_reader.h"

namespace haulway {

namespace {

Result<const tensorizer::Reader*> ReaderOf(const FormatReader& of) {
  const tensorizer::Reader* reader = tensorizer::Reader::Of(of);
  if (reader == nullptr) {
    return Status(Code::kInvalidArgument, "not a tensorizer file")
        .Of(of.source()->name());
  }
  return reader;
}

}  // namespace

Result<std::vector<TensorizerTensor>> TensorizerTensors(
    const FormatReader& of) {
  HAULWAY_ASSIGN(const tensorizer::Reader* reader, ReaderOf(of));
  std::vector<TensorizerTensor> tensors;
  tensors.reserve(reader->tensor_index().entries.size());
  for (const tensorizer::IndexEntry& entry : reader->tensor_index().entries) {
    TensorizerTensor& tensor = tensors.emplace_back();
    tensor.type = static_cast<TensorizerType>(entry.type);
    HAULWAY_ASSIGN(tensorizer::Path path,
                   tensorizer::ParseName(entry.name, UINT32_MAX));
    for (tensorizer::PathStep& step : path) {
      tensor.path.push_back(
          {step.is_position, step.position, std::move(step.key)});
    }
  }
  return tensors;
}

Result<std::vector<TensorizerHeader>> ReadTensorizerHeaders(
    const FormatReader& of, std::span<const uint32_t> rows) {
  HAULWAY_ASSIGN(const tensorizer::Reader* reader, ReaderOf(of));
  std::vector<TensorizerHeader> headers;
  headers.reserve(rows.size());
  std::vector<std::byte> frame;
  for (const uint32_t row : rows) {
    if (row >= reader->index().storages.size()) {
      return Status(Code::kInvalidArgument, "no such tensor");
    }
    const StorageInfo& storage = reader->index().storages[row];
    frame.resize(storage.offset - storage.frame_offset);
    HAULWAY_TRY(reader->source()->ReadAt(storage.frame_offset, frame));
    HAULWAY_ASSIGN(const auto header, reader->AuthenticHeaderOf(row, frame));
    HAULWAY_ASSIGN(auto digests, reader->Digests(row, frame, {}));
    headers.push_back({header.fields.module_index, std::move(digests)});
  }
  return headers;
}

Status CheckPayload(const std::vector<PayloadDigest>& digests,
                    std::span<const std::byte> payload) {
  PayloadChecker checker(digests);
  checker.Update(payload);
  return checker.Finish();
}

Result<Secret> DeriveTensorizerKey(const Secret& passphrase,
                                   uint64_t operations, uint64_t memory_bytes,
                                   std::span<const std::byte> salt) {
  tensorizer::KeyDerivation derivation;
  if (salt.size() != derivation.salt.size()) {
    return Status(Code::kInvalidArgument, "salt is not of 16 bytes");
  }
  derivation.operations = operations;
  derivation.memory_bytes = memory_bytes;
  std::ranges::copy(salt, derivation.salt.begin());
  return tensorizer::DeriveKey(passphrase, derivation);
}

}  // namespace haulway
