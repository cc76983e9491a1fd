// Design: parsing collects what the text says in the order in which it says it,
// since the digest of all is over that order; then the files are sorted, and
// compared with one another: two of one name, shards that overlap or leave
// gaps. Everything that a statement can say of itself is checked here, so that
// the rest of the module takes names and ranges as they are. Writing follows
// Python's json.dumps(), with which the reference writes.

#include "signing/statement.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <system_error>
#include <utility>

#include "base/checked.h"
#include "base/sha256.h"
#include "base/text.h"
#include "signing/json_reader.h"

namespace haulway::signing {

namespace {

// Sorts by name and position.
void SortResources(std::vector<Resource>* all) {
  std::ranges::sort(*all, [](const Resource& a, const Resource& b) {
    if (a.name != b.name) return IsBefore(a.name, b.name);
    return a.begin < b.begin;
  });
}

constexpr std::string_view kStatementType = "https://in-toto.io/Statement/v1";

Status Wrong(std::string what) { return Status(Code::kCorrupt, what); }

std::optional<ModelHash> HashOf(std::string_view name) {
  if (name == "blake2") return ModelHash::kBlake2b;
  return FromWord<ModelHash>(name);
}

std::string Digest(std::span<const Resource> resources) {
  Sha256 sha256;
  for (const Resource& resource : resources) {
    sha256.Update(std::as_bytes(std::span(resource.digest)));
  }
  const Sha256Value value = sha256.Finish();
  return Hex(value);
}

// Splits "NAME:BEGIN:END" at its last two colons.
bool SplitPiece(std::string_view text, Resource* piece) {
  const auto number = [&](uint64_t* to) {
    const size_t colon = text.rfind(':');
    if (colon == text.npos) return false;
    const std::string_view digits = text.substr(colon + 1);
    const char* const end = digits.data() + digits.size();
    const auto [rest, error] = std::from_chars(digits.data(), end, *to);
    if (error != std::errc() || rest != end) return false;
    if (digits.size() > 1 && digits[0] == '0') return false;
    text = text.substr(0, colon);
    return true;
  };
  if (!number(&piece->end) || !number(&piece->begin)) return false;
  piece->name = text;
  return true;
}

struct Raw {
  std::string name, algorithm, digest;
};

class StatementParser {
 public:
  Result<Statement> Parse(std::string_view text) {
    HAULWAY_TRY(ReadJson(text, "statement",
                         [&](std::string_view key, JsonValue& value,
                             int depth) { return Top(key, value, depth); }));
    if (type_ != kStatementType) {
      return Status(Code::kUnsupported,
                    fmt::format("the statement is of type {}: expected {}",
                                Quote(type_), kStatementType));
    }
    if (statement_.predicate_type == kOldPredicateType) return Old();
    if (statement_.predicate_type != kPredicateType) {
      return Status(
          Code::kUnsupported,
          fmt::format("the statement's predicate is {}: expected {}",
                      Quote(statement_.predicate_type), kPredicateType));
    }
    return New();
  }

 private:
  Status Top(std::string_view key, JsonValue& value, int depth) {
    if (key == "_type") {
      HAULWAY_ASSIGN(type_, ReadJsonText(value, key));
      return Status();
    }
    if (key == "predicateType") {
      HAULWAY_ASSIGN(statement_.predicate_type, ReadJsonText(value, key));
      return Status();
    }
    if (key == "subject") {
      return ReadJsonArray(value, key, depth, [&](JsonValue& item, int at) {
        return Subject(item, at);
      });
    }
    if (key == "predicate") {
      return ReadJsonObject(
          value, key, depth,
          [&](std::string_view name, JsonValue& inner, int at) -> Status {
            if (name == "serialization") {
              has_serialization_ = true;
              return Serialization(inner, at);
            }
            if (name == "resources") {
              has_resources_ = true;
              return ReadJsonArray(inner, name, at,
                                   [&](JsonValue& item, int item_depth) {
                                     return OneResource(item, item_depth);
                                   });
            }
            return SkipJson(inner, name, at);
          });
    }
    return SkipJson(value, key, depth);
  }

  Status Subject(JsonValue& value, int depth) {
    HAULWAY_TRY(CheckCount(subjects_.size()));
    Raw& subject = subjects_.emplace_back();
    return ReadJsonObject(
        value, "subject", depth,
        [&](std::string_view key, JsonValue& inner, int at) -> Status {
          if (key == "name") {
            HAULWAY_ASSIGN(subject.name, ReadJsonText(inner, "subject.name"));
            return Status();
          }
          if (key != "digest") return SkipJson(inner, key, at);
          return ReadJsonObject(
              inner, key, at,
              [&](std::string_view name, JsonValue& text,
                  int text_depth) -> Status {
                if (name != "sha256") return SkipJson(text, name, text_depth);
                HAULWAY_ASSIGN(subject.digest,
                               ReadJsonText(text, "subject.digest.sha256"));
                return Status();
              });
        });
  }

  Status Serialization(JsonValue& value, int depth) {
    return ReadJsonObject(
        value, "serialization", depth,
        [&](std::string_view key, JsonValue& inner, int at) -> Status {
          if (key == "method") {
            HAULWAY_ASSIGN(method_, ReadJsonText(inner, key));
          } else if (key == "hash_type") {
            HAULWAY_ASSIGN(hash_, ReadJsonText(inner, key));
          } else if (key == "allow_symlinks") {
            HAULWAY_ASSIGN(statement_.allow_symlinks, ReadJsonFlag(inner, key));
          } else if (key == "shard_size") {
            HAULWAY_ASSIGN(statement_.piece_bytes, ReadJsonNumber(inner, key));
          } else if (key == "ignore_paths") {
            return ReadJsonArray(
                inner, key, at, [&](JsonValue& item, int) -> Status {
                  HAULWAY_TRY(CheckCount(statement_.ignore_paths.size()));
                  HAULWAY_ASSIGN(std::string path, ReadJsonText(item, key));
                  statement_.ignore_paths.push_back(std::move(path));
                  return Status();
                });
          } else {
            return SkipJson(inner, key, at);
          }
          return Status();
        });
  }

  Status OneResource(JsonValue& value, int depth) {
    HAULWAY_TRY(CheckCount(raw_.size()));
    Raw& raw = raw_.emplace_back();
    return ReadJsonObject(
        value, "resource", depth,
        [&](std::string_view key, JsonValue& inner, int at) -> Status {
          std::string* const to = key == "name"        ? &raw.name
                                  : key == "algorithm" ? &raw.algorithm
                                  : key == "digest"    ? &raw.digest
                                                       : nullptr;
          if (to == nullptr) return SkipJson(inner, key, at);
          HAULWAY_ASSIGN(*to, ReadJsonText(inner, key));
          return Status();
        });
  }

  static Status CheckCount(size_t count) {
    if (count < kMostResources) return Status();
    return Status(
        Code::kLimit,
        fmt::format("the statement lists more than {} files", kMostResources));
  }

  // A subject for each file, and nothing else.
  Result<Statement> Old() {
    for (const Raw& subject : subjects_) {
      HAULWAY_TRY(Add({subject.name, "sha256", subject.digest}));
    }
    HAULWAY_TRY(CheckNames());
    statement_.subject.sha256 = Digest(statement_.resources);
    return std::move(statement_);
  }

  Result<Statement> New() {
    if (subjects_.size() != 1) {
      return Wrong(fmt::format("the statement has {} subjects: expected 1",
                               subjects_.size()));
    }
    if (!has_serialization_ || !has_resources_) {
      return Wrong(
          "the statement's predicate needs 'serialization' and 'resources'");
    }
    if (method_ != "files" && method_ != "shards") {
      return Status(Code::kUnsupported,
                    fmt::format("the model was digested by method {}: expected "
                                "files or shards",
                                Quote(method_)));
    }
    statement_.has_pieces = method_ == "shards";
    const auto hash = HashOf(hash_);
    if (!hash.has_value()) {
      return Status(Code::kUnsupported,
                    fmt::format("the model was digested with {}: expected "
                                "sha256, blake2b or blake3",
                                Quote(hash_)));
    }
    statement_.hash = *hash;
    if (statement_.has_pieces &&
        (statement_.piece_bytes == 0 || *hash == ModelHash::kBlake3)) {
      return Wrong(
          "the statement's shards need a shard_size above 0, and "
          "sha256 or blake2b");
    }
    if (!statement_.has_pieces) statement_.piece_bytes = 0;
    statement_.resources.reserve(raw_.size());
    for (const Raw& raw : raw_) HAULWAY_TRY(Add(raw));
    raw_ = {};
    HAULWAY_ASSIGN(const std::string root,
                   DecodeHex(subjects_[0].digest, 32, "subject.digest.sha256"));
    // The root is of the order listed, the checks of names need their own.
    const std::string found = Digest(statement_.resources);
    if (found != Hex(std::as_bytes(std::span(root)))) {
      return Wrong(
          fmt::format("the statement contradicts itself: its digests have the "
                      "SHA-256 {}, and the subject {}",
                      found, Quote(subjects_[0].digest)));
    }
    statement_.subject = {std::move(subjects_[0].name), found};
    HAULWAY_TRY(CheckNames());
    return std::move(statement_);
  }

  Status Add(const Raw& raw) {
    Resource resource;
    if (!statement_.has_pieces) {
      resource.name = raw.name;
    } else if (!SplitPiece(raw.name, &resource)) {
      return Wrong(
          fmt::format("the statement lists {}: expected "
                      "NAME:START:END",
                      Quote(raw.name)));
    }
    if (const auto why = WhyNoPath(resource.name); !why.empty()) {
      return Wrong(fmt::format("the statement lists {}, a path that {}",
                               Quote(raw.name), why));
    }
    std::string_view algorithm = raw.algorithm;
    if (statement_.has_pieces) {
      const std::string tail =
          fmt::format("-sharded-{}", statement_.piece_bytes);
      if (!algorithm.ends_with(tail)) algorithm = "";
      algorithm = algorithm.substr(
          0, algorithm.size() - std::min(algorithm.size(), tail.size()));
    }
    const auto hash = HashOf(algorithm);
    if (!hash.has_value() || *hash != statement_.hash) {
      return Wrong(fmt::format(
          "the algorithm of {} is {}: expected that of "
          "the model, {}",
          Quote(raw.name), Quote(raw.algorithm), WordOf(statement_.hash)));
    }
    HAULWAY_ASSIGN(resource.digest,
                   DecodeHex(raw.digest, DigestBytes(*hash),
                             fmt::format("the digest of {}", Quote(raw.name))));
    statement_.resources.push_back(std::move(resource));
    return Status();
  }

  // Sorts the resources, and checks what they are to one another.
  Status CheckNames() {
    std::vector<Resource>& all = statement_.resources;
    SortResources(&all);
    const uint64_t size = statement_.piece_bytes;
    uint64_t end = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      const Resource& one = all[i];
      const bool is_same = i > 0 && all[i - 1].name == one.name;
      if (one.name == kOneFile && all.front().name != all.back().name) {
        return Wrong("the statement lists the model as a file and other files");
      }
      if (!statement_.has_pieces) {
        if (!is_same) continue;
        return Wrong(
            fmt::format("the statement lists {} twice", Quote(one.name)));
      }
      if (!is_same) end = 0;
      const bool is_last = i + 1 == all.size() || all[i + 1].name != one.name;
      if (one.begin != end || one.end <= one.begin ||
          one.end - one.begin > size ||
          (!is_last && one.end - one.begin != size)) {
        return Wrong(fmt::format(
            "the shard {}:{}:{} does not continue at byte {} with {} bytes",
            Quote(one.name), one.begin, one.end, end, size));
      }
      end = one.end;
    }
    return Status();
  }

  Statement statement_;
  std::string type_, method_, hash_;
  std::vector<Raw> subjects_, raw_;
  bool has_serialization_ = false, has_resources_ = false;
};

// Returns JSON of ASCII, as Python's json.dumps() spells it.
std::string AsciiJson(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t length = Utf8SequenceLength(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    if (length == 1) {
      constexpr std::string_view kShort = "\bb\ff\nn\rr\tt\"\"\\\\";
      const size_t found = kShort.find(text[0]);
      if (found != kShort.npos && found % 2 == 0) {
        out += '\\';
        out += kShort[found + 1];
      } else if (byte < 0x20) {
        out += fmt::format("\\u{:04x}", byte);
      } else {
        out += text[0];
      }
      text.remove_prefix(1);
      continue;
    }
    uint32_t point = byte & (0xFFU >> (length + 1));
    for (size_t i = 1; i < length; ++i) {
      point = point << 6 | (static_cast<unsigned char>(text[i]) & 0x3FU);
    }
    if (point >= 0x10000) {
      point -= 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (point >> 10),
                         0xDC00 + (point & 0x3FF));
    } else {
      out += fmt::format("\\u{:04x}", point);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out + "\"";
}

}  // namespace

size_t DigestBytes(ModelHash hash) {
  return hash == ModelHash::kBlake2b ? 64 : 32;
}

bool IsBefore(std::string_view a, std::string_view b) {
  // '/' ends a part, so that it comes before every other byte.
  const auto rank = [](char c) {
    return c == '/' ? -1 : static_cast<int>(static_cast<unsigned char>(c));
  };
  return std::ranges::lexicographical_compare(a, b, {}, rank, rank);
}

std::string_view WhyNoPath(std::string_view path) {
  if (path == kOneFile) return "";
  if (path.empty()) return "is empty";
  if (path.find('\0') != path.npos) return "has a NUL byte";
  if (path.front() == '/') return "is absolute";
  for (size_t at = 0; at <= path.size();) {
    const size_t slash = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, slash - at);
    if (part == "..") return "leads out of the model";
    if (part.empty() || part == ".") return "has an empty part or '.'";
    at = slash + 1;
  }
  return "";
}

Result<Statement> ParseStatement(std::string_view text) {
  return StatementParser().Parse(text);
}

std::string WriteStatement(Statement* statement) {
  std::vector<Resource>& all = statement->resources;
  SortResources(&all);
  std::ranges::sort(statement->ignore_paths);
  statement->subject.sha256 = Digest(all);
  const std::string_view hash = WordOf(statement->hash);
  const std::string algorithm =
      statement->has_pieces
          ? fmt::format("{}-sharded-{}", hash, statement->piece_bytes)
          : std::string(hash);
  std::string text = fmt::format(
      "{{\n  \"_type\": \"{}\",\n  \"subject\": [\n    {{\n"
      "      \"name\": {},\n      \"digest\": {{\n        \"sha256\": \"{}\"\n"
      "      }}\n    }}\n  ],\n  \"predicateType\": \"{}\",\n"
      "  \"predicate\": {{\n    \"serialization\": {{\n"
      "      \"method\": \"{}\",\n      \"hash_type\": \"{}\",\n"
      "      \"allow_symlinks\": {}",
      kStatementType, AsciiJson(statement->subject.name),
      statement->subject.sha256, kPredicateType,
      statement->has_pieces ? "shards" : "files", hash,
      statement->allow_symlinks ? "true" : "false");
  if (statement->has_pieces) {
    text += fmt::format(",\n      \"shard_size\": {}", statement->piece_bytes);
  }
  if (!statement->ignore_paths.empty()) {
    text += ",\n      \"ignore_paths\": [";
    for (const std::string& path : statement->ignore_paths) {
      text += fmt::format("{}\n        {}", text.ends_with('[') ? "" : ",",
                          AsciiJson(path));
    }
    text += "\n      ]";
  }
  text += "\n    },\n    \"resources\": [";
  for (const Resource& one : all) {
    const std::string name =
        statement->has_pieces
            ? fmt::format("{}:{}:{}", one.name, one.begin, one.end)
            : one.name;
    text += fmt::format(
        "{}\n      {{\n        \"name\": {},\n        \"algorithm\": "
        "\"{}\",\n        \"digest\": \"{}\"\n      }}",
        text.ends_with('[') ? "" : ",", AsciiJson(name), algorithm,
        Hex(std::as_bytes(std::span(one.digest))));
  }
  text += all.empty() ? "]" : "\n    ]";
  return text + "\n  }\n}";
}

}  // namespace haulway::signing
