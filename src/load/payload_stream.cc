#include "load/payload_stream.h"

#include <vector>

namespace haulway {

Result<PayloadStream> PayloadStream::Open(const FormatReader& reader,
                                          uint32_t storage, bool verify,
                                          const RequestReader& requests,
                                          LoadProgress* progress,
                                          std::span<std::byte> frame) {
  HAULWAY_TRY(
      requests.Read(reader.index().storages[storage].frame_offset, frame));
  HAULWAY_ASSIGN(
      SequenceDecoder decoder,
      SequenceDecoder::Open(reader, storage, verify, frame, progress));
  return PayloadStream(std::move(decoder), requests);
}

Status PayloadStream::Next(std::span<std::byte> piece) {
  PayloadStream* const stream = this;
  return NextTogether(std::span(&stream, 1), std::span(&piece, 1));
}

Status PayloadStream::NextTogether(
    std::span<PayloadStream* const> streams,
    std::span<const std::span<std::byte>> pieces) {
  std::vector<SequenceDecoder*> decoders;
  decoders.reserve(streams.size());
  for (size_t i = 0; i < streams.size(); ++i) {
    SequenceDecoder& decoder = streams[i]->decoder_;
    HAULWAY_TRY(streams[i]->requests_->Read(
        decoder.info().offset + decoder.done(), pieces[i]));
    HAULWAY_TRY(decoder.Decode(pieces[i]));
    decoders.push_back(&decoder);
  }
  SequenceDecoder::Digest(decoders, pieces);
  return Status();
}

}  // namespace haulway
