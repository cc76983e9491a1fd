#include "convert/encrypt.h"

#include <numeric>
#include <utility>
#include <vector>

#include "haulway/convert.h"
#include "haulway/load.h"
#include "haulway/tensorizer.h"
#include "tensorizer/tensorizer_reader.h"
#include "tensorizer/tensorizer_save.h"

namespace haulway {

TensorizerOptions convert::LayoutOf(const Checkpoint& from,
                                    const tensorizer::Reader& reader) {
  TensorizerOptions options;
  const tensorizer::Preamble& preamble = reader.preamble();
  if (preamble.layout != tensorizer::Layout::kSegments) return options;
  options.layout = TensorizerLayout::kSegments;
  if (!preamble.segments.has_value()) {
    options.layout = TensorizerLayout::kSegmentsPr170;
    options.room_for = 0;
  }
  if (!from.index().metadata.has_value()) return options;
  for (const Fact& note : *from.index().metadata) {
    options.metadata.emplace_back(note.name, std::get<std::string>(note.value));
  }
  return options;
}

Result<EncryptStats> EncryptCheckpoint(const Checkpoint& from,
                                       const EncryptionKey& key, ByteSink& sink,
                                       const EncryptOptions& options) {
  const CheckpointIndex& index = from.index();
  const tensorizer::Reader* reader = tensorizer::Reader::Of(from.reader());
  if (reader == nullptr) {
    return Status(Code::kUnsupported,
                  "only tensorizer files can be encrypted or decrypted")
        .Of(from.source().name());
  }
  // Check the key before the tensors are read, which takes long.
  TensorizerOptions write = convert::LayoutOf(from, *reader);
  write.authenticate_metadata = options.authenticate_metadata;
  HAULWAY_TRY(tensorizer::SetKey(key, &write));
  std::vector<uint32_t> rows(index.tensors.size());
  std::iota(rows.begin(), rows.end(), 0);
  HAULWAY_ASSIGN(auto tensors, TensorizerTensors(from.reader()));
  HAULWAY_ASSIGN(const auto headers,
                 ReadTensorizerHeaders(from.reader(), rows));
  LoadOptions load;
  // A source in memory is written without a copy.
  if (from.source().View(0, 0).has_value()) load.io = IoMode::kMmap;
  load.threads = options.write.threads;
  load.verify = true;
  load.cancel = options.write.cancel;
  HAULWAY_ASSIGN(const LoadedStorages loaded, LoadStorages(from, rows, load));

  std::vector<TensorizerInput> inputs(tensors.size());
  for (const uint32_t row : rows) {
    const TensorInfo& info = index.tensors[row];
    TensorizerInput& input = inputs[row];
    input.path = std::move(tensors[row].path);
    input.type = tensors[row].type;
    input.module_index = headers[row].module_index;
    input.dtype = info.dtype;
    input.shape.assign(info.shape.begin(), info.shape.end());
    input.meta = info.kind == TensorKind::kMeta;
    input.bytes = loaded.buffers[row].data();
  }
  HAULWAY_ASSIGN(const auto layout, LayOutTensorizer(inputs, write));
  EncryptStats stats;
  stats.tensors = inputs.size();
  HAULWAY_ASSIGN(stats.write, Write(*layout, sink, options.write));
  return stats;
}

}  // namespace haulway
