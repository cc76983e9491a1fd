#include "dcp/dcp_metadata.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace haulway::dcp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// These functions return pickle opcodes as Python writes them.
std::string Text(std::string_view text) {
  std::string opcode = "X";
  const auto size = static_cast<uint32_t>(text.size());
  for (int i = 0; i < 4; ++i) opcode += static_cast<char>(size >> (8 * i));
  return opcode + std::string(text);
}
std::string Number(int number) {
  return std::string("K") + static_cast<char>(number);
}
std::string Global(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
std::string OfFormat(std::string_view name) {
  return Global("torch.distributed.checkpoint.metadata", name);
}
std::string Size(const std::string& numbers) {
  return Global("torch", "Size") + "(" + numbers + "t\x85R";
}
// Returns an object that is created empty and then filled.
std::string Filled(const std::string& global, const std::string& fields) {
  return global + ")\x81}(" + fields + "ub";
}
std::string Layout() {
  return Global("torch.serialization", "_get_layout") + Text("torch.strided") +
         "\x85R";
}

struct Parts {
  std::string memory_format =
      OfFormat("_MEM_FORMAT_ENCODING") + "K" + std::string(1, '\0') + "\x85R";
  std::string path = "__0_0.distcp";
  std::string planner = "}";
  std::string info = {};        // More fields of the storage info.
  std::string properties = {};  // More values of the tensor's properties.
};

// Returns metadata with one tensor "w" of shape [4], in one chunk.
std::string Pickle(const Parts& parts = {}) {
  const std::string zero = Size(Number(0));
  const std::string four = Size(Number(4));
  const std::string properties = OfFormat("TensorProperties") + ")\x81(" +
                                 Global("torch", "float32") + Layout() +
                                 "\x89" + parts.memory_format + "\x89" +
                                 parts.properties + "tb";
  const std::string chunk =
      Filled(OfFormat("ChunkStorageMetadata"),
             Text("offsets") + zero + Text("sizes") + four);
  const std::string tensor =
      Filled(OfFormat("TensorStorageMetadata"),
             Text("properties") + properties + Text("size") + four +
                 Text("chunks") + "](" + chunk + "e");
  const std::string key = Filled(OfFormat("MetadataIndex"),
                                 Text("fqn") + Text("w") + Text("offset") +
                                     zero + Text("index") + Number(0));
  const std::string info =
      Filled(Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
             Text("relative_path") + Text(parts.path) + Text("offset") +
                 Number(0) + Text("length") + Number(100) + parts.info);
  return "\x80\x02" +
         Filled(OfFormat("Metadata"),
                Text("state_dict_metadata") + "}(" + Text("w") + tensor + "u" +
                    Text("planner_data") + parts.planner +
                    Text("storage_data") + "}(" + key + info + "u" +
                    Text("version") + Text("1.0.0")) +
         ".";
}

Result<Metadata> Parse(std::string_view pickle, TreeArena* arena) {
  return ParseMetadata(std::as_bytes(std::span(pickle)), {}, arena);
}

Status Refusal(const Parts& parts) {
  TreeArena arena;
  const std::string pickle = Pickle(parts);
  return Parse(pickle, &arena).status();
}

TEST(DcpMetadata, SaysWhatIsStoredWhere) {
  TreeArena arena;
  const std::string pickle = Pickle();
  EXPECT_TRUE(IsMetadata(std::as_bytes(std::span(pickle))));
  const auto parsed = Parse(pickle, &arena);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  ASSERT_EQ(parsed->tensors.size(), 1U);
  EXPECT_EQ(parsed->tensors[0].name, "w");
  EXPECT_EQ(parsed->tensors[0].dtype, DType::kF32);
  EXPECT_EQ(parsed->tensors[0].nbytes, 16U);
  EXPECT_EQ(parsed->files.front(), "__0_0.distcp");
  EXPECT_EQ(parsed->chunks[0].item.length, 100U);
  EXPECT_EQ(parsed->version, "1.0.0");
  EXPECT_TRUE(CheckLayout(*parsed).ok());
}

TEST(DcpMetadata, TakesStridesAsTorch215WritesThem) {
  TreeArena arena;
  const std::string without = Pickle();
  EXPECT_FALSE(Parse(without, &arena)->tensors[0].strides.has_value());
  const std::string none = Pickle({.properties = "N"});
  EXPECT_FALSE(Parse(none, &arena)->tensors[0].strides.has_value());
  const std::string pickle = Pickle({.properties = Number(1) + "\x85"});
  const auto parsed = Parse(pickle, &arena);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  ASSERT_TRUE(parsed->tensors[0].strides.has_value());
  EXPECT_THAT(*parsed->tensors[0].strides, ElementsAre(1));
  const std::string again = EncodeMetadata(*parsed);
  const auto read = Parse(again, &arena);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_THAT(*read->tensors[0].strides, ElementsAre(1));
  // Neither a number nor a negative one, nor more values, are strides.
  for (const std::string& wrong :
       {Number(1), "(J" + std::string(4, '\xff') + "t", Number(1) + "\x85N"}) {
    EXPECT_EQ(Refusal({.properties = wrong}).code(), Code::kCorrupt) << wrong;
  }
}

TEST(DcpMetadata, TakesMembersOfEnumsAsPython311WritesThem) {
  EXPECT_TRUE(
      Refusal({.memory_format = Global("builtins", "getattr") +
                                OfFormat("_MEM_FORMAT_ENCODING") +
                                Text("TORCH_CONTIGUOUS_FORMAT") + "\x86R"})
          .ok());
  const Status other = Refusal({.memory_format = Global("builtins", "getattr") +
                                                 OfFormat("Metadata") +
                                                 Text("__init__") + "\x86R"});
  EXPECT_EQ(other.code(), Code::kUnsafe);
  EXPECT_TRUE(other.byte().has_value());
}

TEST(DcpMetadata, RefusesNamesThatAreNotItsOwn) {
  for (const auto& [module, name] :
       {std::pair("os", "system"), std::pair("collections", "OrderedDict")}) {
    const Status status =
        Refusal({.planner = "}(" + Text("x") + Global(module, name) + ")Ru"});
    EXPECT_EQ(status.code(), Code::kUnsafe) << name;
    EXPECT_THAT(status.message(), HasSubstr(name));
    EXPECT_TRUE(status.byte().has_value());
  }
}

TEST(DcpMetadata, RefusesPathsThatLeadOut) {
  for (const char* path : {"../a", "/a", "", ".", "a/../b", "a//b", "a\\b"}) {
    EXPECT_EQ(Refusal({.path = path}).code(), Code::kCorrupt) << path;
  }
  EXPECT_TRUE(Refusal({.path = "a/b.distcp"}).ok());
}

TEST(DcpMetadata, NamesTheExtension) {
  const auto refusal = [](const std::string& name) {
    return Refusal(
        {.info = Text("transform_descriptors") + "](" + Text(name) + "e"});
  };
  for (const char* name : {"stream.lz4/1", "stream.zstd/2", "stream.zstd",
                           "stream.zstd/", "stream.zstd@here/1", ""}) {
    const Status status = refusal(name);
    EXPECT_EQ(status.code(), Code::kUnsupported) << name;
    EXPECT_THAT(status.message(), HasSubstr(fmt::format("'{}'", name)));
  }
  EXPECT_TRUE(refusal("stream.zstd/1").ok());
  EXPECT_TRUE(refusal("stream.zstd/1.7").ok());
}

TEST(DcpMetadata, IsTheSameOnceItIsWrittenAgain) {
  TreeArena arena;
  const std::string pickle =
      Pickle({.planner = "}(" + Text("w") + Text("a") + Number(1) + "\x86u"});
  auto first = Parse(pickle, &arena);
  ASSERT_TRUE(first.ok()) << first.status().message();
  first->storage_meta = StorageMeta{.checkpoint_id = "a/b",
                                    .save_id = std::nullopt,
                                    .load_id = std::nullopt,
                                    .modules = {"m"}};
  first->chunks[0].item = {0, uint64_t{1} << 40, 70000};
  const std::string written = EncodeMetadata(*first);
  EXPECT_TRUE(IsMetadata(std::as_bytes(std::span(written))));
  const auto second = Parse(written, &arena);
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(second->tensors[0].name, "w");
  EXPECT_EQ(second->tensors[0].nbytes, 16U);
  EXPECT_EQ(second->chunks[0].item.offset, uint64_t{1} << 40);
  EXPECT_EQ(second->chunks[0].item.length, 70000U);
  EXPECT_EQ(second->entries[0].path.size(), 2U);
  EXPECT_EQ(second->entries[0].path[1].integer(), 1);
  EXPECT_EQ(second->storage_meta->checkpoint_id, "a/b");
  EXPECT_EQ(second->storage_meta->save_id, std::nullopt);
  EXPECT_EQ(second->storage_meta->modules.front(), "m");
  EXPECT_EQ(EncodeMetadata(*second), written);
}

TEST(DcpMetadata, IsWrittenInBatchesAndFrames) {
  std::vector<std::string> names;
  for (int i = 0; i < 2500; ++i) names.push_back("layer." + std::to_string(i));
  const int64_t zero = 0;
  const int64_t four = 4;
  Metadata metadata;
  metadata.files = {"__0_0.distcp"};
  metadata.has_paths = true;
  for (uint32_t i = 0; i < names.size(); ++i) {
    metadata.entries.push_back({true, i, {}});
    metadata.tensors.push_back({.name = names[i],
                                .dtype = DType::kBF16,
                                .shape = {&four, 1},
                                .nbytes = 8,
                                .first_chunk = i,
                                .chunk_count = 1});
    metadata.chunks.push_back(
        {{&zero, 1}, {&four, 1}, {0, uint64_t{i} * 100, 100}});
  }
  TreeArena arena;
  const std::string written = EncodeMetadata(metadata);
  const auto parsed = Parse(written, &arena);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  ASSERT_EQ(parsed->tensors.size(), names.size());
  EXPECT_EQ(parsed->tensors[2499].name, "layer.2499");
  EXPECT_EQ(parsed->chunks[2499].item.offset, 249900U);
  EXPECT_EQ(parsed->entries[2499].path[0].text(), "layer.2499");
  EXPECT_TRUE(CheckLayout(*parsed).ok());
}

TEST(DcpMetadata, IsRefusedCutAnywhere) {
  const std::string pickle = Pickle();
  for (size_t size = 0; size < pickle.size(); ++size) {
    TreeArena arena;
    EXPECT_FALSE(Parse(std::string_view(pickle).substr(0, size), &arena).ok())
        << size;
  }
}

TEST(DcpMetadata, EndsInFactsOrAnErrorWhateverIsFlipped) {
  const std::string pickle = Pickle();
  for (size_t at = 0; at < pickle.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = pickle;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      TreeArena arena;
      const auto parsed = Parse(changed, &arena);
      if (!parsed.ok()) continue;
      for (const Chunk& chunk : parsed->chunks) {
        EXPECT_LT(chunk.item.file, parsed->files.size());
      }
    }
  }
}

}  // namespace
}  // namespace haulway::dcp
