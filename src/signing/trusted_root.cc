#include "signing/trusted_root.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/text.h"
#include "signing/bundle.h"
#include "signing/certificates.h"
#include "signing/json_reader.h"

namespace haulway::signing {

namespace {

constexpr std::string_view kRootName = "trusted root";
constexpr std::string_view kRootTypes[] = {
    "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
    "application/vnd.dev.sigstore.trustedroot.v0.2+json"};
constexpr std::string_view kClientType =
    "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json";
// Of each kind.
constexpr size_t kMostItems = 1000;

Status CheckCount(size_t count) {
  if (count < kMostItems) return Status();
  return Status(Code::kLimit,
                fmt::format("the trusted root has more than {} items of a kind",
                            kMostItems));
}

Status ReadValidity(JsonValue& value, int depth, Validity* validity) {
  return ReadJsonObject(
      value, "validFor", depth,
      [&](std::string_view key, JsonValue& inner, int at) -> Status {
        if (key != "start" && key != "end") return SkipJson(inner, key, at);
        HAULWAY_ASSIGN(const std::string text, ReadJsonText(inner, key));
        HAULWAY_ASSIGN(const int64_t time, ParseTime(text));
        (key == "start" ? validity->begin : validity->end) = time;
        return Status();
      });
}

Status ReadLog(JsonValue& value, int depth, LogKey* log) {
  return ReadJsonObject(
      value, "log", depth,
      [&](std::string_view key, JsonValue& inner, int at) -> Status {
        const bool is_key = key == "publicKey";
        if (!is_key && key != "logId") return SkipJson(inner, key, at);
        return ReadJsonObject(inner, key, at,
                              [&](std::string_view name, JsonValue& bytes,
                                  int bytes_depth) -> Status {
                                if (name != (is_key ? "rawBytes" : "keyId")) {
                                  return SkipJson(bytes, name, bytes_depth);
                                }
                                HAULWAY_ASSIGN((is_key ? log->key : log->id),
                                               ReadJsonBase64(bytes, name));
                                return Status();
                              });
      });
}

Status ReadChain(JsonValue& value, int depth, Authority* authority) {
  return ReadJsonObject(
      value, "certChain", depth,
      [&](std::string_view key, JsonValue& inner, int at) -> Status {
        if (key != "certificates") return SkipJson(inner, key, at);
        return ReadJsonArray(
            inner, key, at, [&](JsonValue& item, int item_depth) {
              return ReadJsonObject(
                  item, key, item_depth,
                  [&](std::string_view name, JsonValue& bytes,
                      int bytes_depth) -> Status {
                    if (name != "rawBytes") {
                      return SkipJson(bytes, name, bytes_depth);
                    }
                    if (authority->certificates.size() == kMostCertificates) {
                      return Status(Code::kLimit,
                                    fmt::format("a chain of the trusted root "
                                                "has more than {} certificates",
                                                kMostCertificates));
                    }
                    HAULWAY_ASSIGN(std::string der,
                                   ReadJsonBase64(bytes, name));
                    authority->certificates.push_back(std::move(der));
                    return Status();
                  });
            });
      });
}

Status ReadAuthority(JsonValue& value, int depth, Authority* authority) {
  return ReadJsonObject(value, "authority", depth,
                        [&](std::string_view key, JsonValue& inner, int at) {
                          if (key == "certChain")
                            return ReadChain(inner, at, authority);
                          if (key == "validFor") {
                            return ReadValidity(inner, at,
                                                &authority->validity);
                          }
                          return SkipJson(inner, key, at);
                        });
}

template <class Item>
Status ReadList(JsonValue& value, std::string_view what, int depth,
                std::vector<Item>* list,
                Status (*read)(JsonValue& value, int depth, Item* item)) {
  return ReadJsonArray(value, what, depth,
                       [&](JsonValue& item, int at) -> Status {
                         HAULWAY_TRY(CheckCount(list->size()));
                         return read(item, at, &list->emplace_back());
                       });
}

struct Found {
  TrustedRoot root;
  std::string type;
};

Status ReadRootField(std::string_view key, JsonValue& value, int depth,
                     Found* found) {
  TrustedRoot& root = found->root;
  if (key == "mediaType") {
    HAULWAY_ASSIGN(found->type, ReadJsonText(value, key));
    return Status();
  }
  if (key == "tlogs") return ReadList(value, key, depth, &root.logs, ReadLog);
  if (key == "ctlogs") {
    return ReadList(value, key, depth, &root.certificate_logs, ReadLog);
  }
  if (key == "certificateAuthorities") {
    return ReadList(value, key, depth, &root.authorities, ReadAuthority);
  }
  if (key == "timestampAuthorities") {
    return ReadList(value, key, depth, &root.time_stampers, ReadAuthority);
  }
  return SkipJson(value, key, depth);
}

}  // namespace

Result<TrustedRoot> ParseTrustedRoot(std::string_view text) {
  Found outer, inner;
  HAULWAY_TRY(ReadJson(
      text, kRootName, [&](std::string_view key, JsonValue& value, int depth) {
        if (key != "trustedRoot") {
          return ReadRootField(key, value, depth, &outer);
        }
        return ReadJsonObject(
            value, key, depth,
            [&](std::string_view name, JsonValue& field, int at) {
              return ReadRootField(name, field, at, &inner);
            });
      }));
  Found& found = outer.type == kClientType ? inner : outer;
  for (const std::string_view type : kRootTypes) {
    if (found.type == type) return std::move(found.root);
  }
  return Status(Code::kInvalidArgument,
                fmt::format("it is no trusted root of Sigstore: expected the "
                            "mediaType {}, found {}",
                            kRootTypes[0], Quote(found.type)));
}

}  // namespace haulway::signing
