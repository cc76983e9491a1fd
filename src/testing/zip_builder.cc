#include "testing/zip_builder.h"

#include <libdeflate.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "base/digest.h"

namespace haulway::test {

namespace {

constexpr uint64_t kMax32 = 0xFFFFFFFF;

std::string Deflate(const std::string& data) {
  const std::unique_ptr<libdeflate_compressor, void (*)(libdeflate_compressor*)>
      compressor(libdeflate_alloc_compressor(9), &libdeflate_free_compressor);
  std::string out(
      libdeflate_deflate_compress_bound(compressor.get(), data.size()), '\0');
  out.resize(libdeflate_deflate_compress(compressor.get(), data.data(),
                                         data.size(), out.data(), out.size()));
  return out;
}

// A PickleWriter numbers memoized objects as Python's C pickler does.
class PickleWriter {
 public:
  PickleWriter() { out_ = "\x80\x02"; }

  void Op(std::string_view op) { out_ += op; }
  void Memoize() {
    Numbered('q', 'r', next_);
    ++next_;
  }
  // Writes a part that the pickle may contain repeatedly: in full the first
  // time, then from the memo.
  void Shared(const std::string& written) {
    const auto [known, added] = shared_.emplace(written, next_);
    if (added) {
      out_ += written;
      Memoize();
    } else {
      Numbered('h', 'j', known->second);
    }
  }
  static std::string Text(const std::string& text) {
    return "X" + Little(text.size(), 4) + text;
  }
  void Int(uint64_t value) {
    if (value < 256) {
      out_ += "K" + Little(value, 1);
    } else if (value < 65536) {
      out_ += "M" + Little(value, 2);
    } else if (value < uint64_t{1} << 31) {
      out_ += "J" + Little(value, 4);
    } else {
      out_ += "\x8a\x08" + Little(value, 8);
    }
  }
  void Tuple(const std::vector<uint64_t>& items) {
    if (items.empty()) {
      out_ += ")";  // The empty tuple is never memoized.
      return;
    }
    if (items.size() > 3) out_ += "(";
    for (const uint64_t item : items) Int(item);
    constexpr std::string_view kShort[] = {"\x85", "\x86", "\x87"};
    out_ += items.size() > 3 ? "t" : kShort[items.size() - 1];
    Memoize();
  }
  std::string Finish() && { return std::move(out_); }

 private:
  void Numbered(char narrow, char wide, uint64_t slot) {
    out_ += slot < 256 ? narrow : wide;
    out_ += Little(slot, slot < 256 ? 1 : 4);
  }

  std::string out_;
  uint64_t next_ = 0;
  std::map<std::string, uint64_t> shared_;
};

constexpr char kOrderedDict[] = "ccollections\nOrderedDict\n";

void PickleTensor(const NamedTensor& tensor, PickleWriter* out) {
  out->Shared("ctorch._utils\n_rebuild_tensor_v2\n");
  out->Op("((");
  out->Shared(PickleWriter::Text("storage"));
  out->Shared("ctorch\n" + tensor.storage_class + "\n");
  out->Op(PickleWriter::Text(tensor.key));
  out->Memoize();
  out->Shared(PickleWriter::Text("cpu"));
  out->Int(tensor.numel);
  out->Op("t");
  out->Memoize();
  out->Op("Q");
  out->Int(tensor.offset);
  out->Tuple(tensor.shape);
  std::vector<uint64_t> strides(tensor.shape.size());
  uint64_t stride = 1;
  for (size_t i = strides.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= tensor.shape[i] == 0 ? 1 : tensor.shape[i];
  }
  out->Tuple(strides);
  out->Op("\x89");
  out->Shared(kOrderedDict);
  out->Op(")R");
  out->Memoize();
  out->Op("t");
  out->Memoize();
  out->Op("R");
  out->Memoize();
}

}  // namespace

std::string Little(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) {
    out += static_cast<char>(value & 0xFF);
    value >>= 8;
  }
  return out;
}

void Put(std::string* bytes, uint64_t at, uint64_t value, int width) {
  bytes->replace(at, width, Little(value, width));
}

BuiltZip BuildZip(const std::vector<ZipRecord>& records,
                  const ZipOptions& options) {
  BuiltZip built;
  std::string& out = built.bytes;
  std::string directory;
  std::vector<uint64_t> entries;
  for (const ZipRecord& record : records) {
    PlacedRecord placed;
    placed.header = out.size();
    const std::string stored =
        record.deflated ? Deflate(record.data) : record.data;
    const uint64_t size = record.data.size();
    const uint32_t right =
        Crc32(0, std::as_bytes(std::span<const char>(record.data)));
    const uint32_t crc32 = record.crc32.value_or(right);
    const bool later = options.descriptors && size > 0;
    const uint64_t flags = later ? 0x0808 : 0x0800;
    const uint64_t needed = record.deflated ? 20 : 0;
    const uint64_t method = record.deflated ? 8 : 0;
    const uint64_t field = options.saturated ? kMax32 : size;
    const uint64_t stored_field = options.saturated ? kMax32 : stored.size();

    std::string wide;
    if (options.saturated) {
      wide = Little(1, 2) + Little(16, 2) + Little(size, 8) +
             Little(stored.size(), 8);
    }
    std::string extra = wide;
    if (options.padding) {
      const uint64_t start =
          out.size() + 30 + record.name.size() + extra.size() + 4;
      const uint64_t pad =
          (options.alignment - start % options.alignment) % options.alignment +
          record.extra_padding;
      extra += "FB" + Little(pad, 2) + std::string(pad, 'Z');
    }
    const bool zeros = options.descriptors && !options.saturated;
    out += "PK\3\4" + Little(needed, 2) + Little(flags, 2) + Little(method, 2) +
           Little(0, 4) + Little(later ? 0 : crc32, 4) +
           Little(zeros ? 0 : stored_field, 4) + Little(zeros ? 0 : field, 4) +
           Little(record.name.size(), 2) + Little(extra.size(), 2) +
           record.name + extra;
    placed.payload = out.size();
    out += stored;
    placed.descriptor = out.size();
    if (later) {
      const int width = options.saturated ? 8 : 4;
      out += "PK\7\10" + Little(crc32, 4) + Little(stored.size(), width) +
             Little(size, width);
    }
    out += record.gap;
    entries.push_back(directory.size());
    directory += "PK\1\2" + Little(0, 2) + Little(needed, 2) +
                 Little(flags, 2) + Little(method, 2) + Little(0, 4) +
                 Little(crc32, 4) + Little(stored_field, 4) + Little(field, 4) +
                 Little(record.name.size(), 2) + Little(wide.size(), 2) +
                 Little(0, 10) + Little(placed.header, 4) + record.name + wide;
    built.records.push_back(placed);
  }
  built.directory = out.size();
  for (size_t i = 0; i < entries.size(); ++i) {
    built.records[i].entry = built.directory + entries[i];
  }
  out += directory;
  if (options.zip64_end) {
    built.zip64_end = out.size();
    out += "PK\6\6" + Little(44, 8) + Little(0x031E, 2) + Little(45, 2) +
           Little(0, 8) + Little(records.size(), 8) +
           Little(records.size(), 8) + Little(directory.size(), 8) +
           Little(built.directory, 8);
    built.locator = out.size();
    out += "PK\6\7" + Little(0, 4) + Little(built.zip64_end, 8) + Little(1, 4);
  }
  built.end = out.size();
  const uint64_t count = records.size() < 65535 ? records.size() : 65535;
  out += "PK\5\6" + Little(0, 4) + Little(count, 2) + Little(count, 2) +
         Little(directory.size(), 4) + Little(built.directory, 4) +
         Little(0, 2);
  return built;
}

std::string PickleStateDict(const std::vector<NamedTensor>& tensors) {
  PickleWriter out;
  out.Shared(kOrderedDict);
  out.Op(")R");
  out.Memoize();
  constexpr size_t kBatch = 1000;  // Items per SETITEMS.
  for (size_t begin = 0; begin < tensors.size(); begin += kBatch) {
    const size_t end = std::min(begin + kBatch, tensors.size());
    if (end - begin > 1) out.Op("(");
    for (size_t i = begin; i < end; ++i) {
      out.Op(PickleWriter::Text(tensors[i].name));
      out.Memoize();
      PickleTensor(tensors[i], &out);
    }
    out.Op(end - begin > 1 ? "u" : "s");
  }
  out.Op(".");
  return std::move(out).Finish();
}

std::vector<ZipRecord> CheckpointRecords(
    std::string_view folder, std::string pickle,
    const std::vector<std::pair<std::string, std::string>>& storages) {
  const std::string prefix = std::string(folder) + "/";
  std::vector<ZipRecord> records;
  records.push_back({prefix + "data.pkl", std::move(pickle)});
  for (const auto& [key, bytes] : storages) {
    records.push_back({prefix + "data/" + key, bytes});
  }
  records.push_back({prefix + "version", "3\n"});
  return records;
}

}  // namespace haulway::test
