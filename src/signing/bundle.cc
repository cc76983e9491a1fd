// Design: the parser is a table of the known keys at each place, with the
// function that reads each value, because a bundle may have no others: a reader
// that skips what it does not know may see another bundle than one that does
// not. What the parts are to one another is checked when all are read. Only
// bundles of keys and certificates are written; those of identities are made
// by programs that reach Sigstore's servers.

#include "signing/bundle.h"

#include <fmt/format.h>

#include <utility>

#include "base/json_text.h"
#include "base/text.h"
#include "signing/json_reader.h"

namespace haulway::signing {

namespace {

// Reads an object with the text or number fields that a row names; refuses
// other keys.
struct KnownField {
  std::string_view key;
  std::function<Status(JsonValue& value, std::string_view what, int depth)>
      read;
};

std::function<Status(JsonValue&, std::string_view, int)> Text(std::string* to) {
  return [to](JsonValue& value, std::string_view what, int) -> Status {
    HAULWAY_ASSIGN(*to, ReadJsonText(value, what));
    return Status();
  };
}

std::function<Status(JsonValue&, std::string_view, int)> Bytes(
    std::string* to) {
  return [to](JsonValue& value, std::string_view what, int) -> Status {
    HAULWAY_ASSIGN(*to, ReadJsonBase64(value, what));
    return Status();
  };
}

std::function<Status(JsonValue&, std::string_view, int)> Number(uint64_t* to) {
  return [to](JsonValue& value, std::string_view what, int) -> Status {
    HAULWAY_ASSIGN(*to, ReadJsonNumber(value, what));
    return Status();
  };
}

std::function<Status(JsonValue&, std::string_view, int)> Ignored() {
  return [](JsonValue& value, std::string_view what, int depth) {
    return SkipJson(value, what, depth);
  };
}

std::function<Status(JsonValue&, std::string_view, int)> Object(
    std::vector<KnownField> fields);

Status ReadKnown(JsonValue& value, std::string_view what, int depth,
                 const std::vector<KnownField>& fields) {
  return ReadJsonObject(
      value, what, depth,
      [&](std::string_view key, JsonValue& inner, int inner_depth) -> Status {
        for (const KnownField& field : fields) {
          if (field.key != key) continue;
          return field.read(inner, fmt::format("{}.{}", what, key),
                            inner_depth);
        }
        return UnknownJsonKey(what, key);
      });
}

std::function<Status(JsonValue&, std::string_view, int)> Object(
    std::vector<KnownField> fields) {
  return [fields = std::move(fields)](JsonValue& value, std::string_view what,
                                      int depth) {
    return ReadKnown(value, what, depth, fields);
  };
}

// Reads a list of objects with one field of bytes each.
std::function<Status(JsonValue&, std::string_view, int)> BytesList(
    std::string_view key, size_t most, std::vector<std::string>* to) {
  return [key, most, to](JsonValue& value, std::string_view what, int depth) {
    return ReadJsonArray(
        value, what, depth, [&](JsonValue& item, int item_depth) -> Status {
          if (to->size() == most) {
            return Status(Code::kLimit,
                          fmt::format("{} has more than {} items", what, most));
          }
          to->emplace_back();
          HAULWAY_TRY(
              ReadKnown(item, what, item_depth, {{key, Bytes(&to->back())}}));
          if (!to->back().empty()) return Status();
          return Status(Code::kCorrupt,
                        fmt::format("an item of {} has no {}", what, key));
        });
  };
}

class BundleParser {
 public:
  Result<Bundle> Parse(std::string_view text) {
    if (text.size() > kMostBundleBytes) {
      return Status(Code::kLimit,
                    fmt::format("the bundle has {} bytes: expected at most {}",
                                text.size(), kMostBundleBytes));
    }
    HAULWAY_TRY(ReadJson(
        text, "bundle", [&](std::string_view key, JsonValue& value, int depth) {
          return Top(key, value, depth);
        }));
    return Check();
  }

 private:
  Status Top(std::string_view key, JsonValue& value, int depth) {
    if (key == "mediaType") {
      HAULWAY_ASSIGN(media_type_, ReadJsonText(value, key));
      return Status();
    }
    if (key == "verificationMaterial") return Material(value, key, depth);
    if (key == "dsseEnvelope") {
      has_envelope_ = true;
      return Envelope(value, key, depth);
    }
    if (key == "messageSignature") {
      return Status(Code::kUnsupported,
                    "the bundle signs a message: expected the signature of a "
                    "model, with a dsseEnvelope");
    }
    return UnknownJsonKey("the bundle", key);
  }

  Status Material(JsonValue& value, std::string_view what, int depth) {
    const auto entry = [&](JsonValue& list, std::string_view name, int at) {
      return ReadJsonArray(
          list, name, at, [&](JsonValue& item, int item_depth) {
            if (++entries_ > 1) {
              return Status(Code::kCorrupt,
                            "the bundle has several log entries: "
                            "expected one");
            }
            return Entry(item, name, item_depth);
          });
    };
    const auto key = [&](JsonValue& object, std::string_view name, int at) {
      has_key_ = true;
      return ReadKnown(
          object, name, at,
          {{"hint",
            [&](JsonValue& text, std::string_view field, int) -> Status {
              HAULWAY_ASSIGN(bundle_.hint, ReadJsonText(text, field));
              return Status();
            }},
           // As model-signing before 1.1.0 wrote; the caller's key
           // counts.
           {"rawBytes", Ignored()},
           {"keyDetails", Ignored()}});
    };
    const auto chain = [&](JsonValue& object, std::string_view name, int at) {
      has_chain_ = true;
      return ReadKnown(object, name, at,
                       {{"certificates",
                         BytesList("rawBytes", kMostCertificates, &chain_)}});
    };
    const auto one = [&](JsonValue& object, std::string_view name, int at) {
      has_one_ = true;
      return ReadKnown(object, name, at, {{"rawBytes", Bytes(&one_)}});
    };
    return ReadKnown(value, what, depth,
                     {{"publicKey", key},
                      {"x509CertificateChain", chain},
                      {"certificate", one},
                      {"tlogEntries", entry},
                      {"timestampVerificationData",
                       Object({{"rfc3161Timestamps",
                                BytesList("signedTimestamp", kMostTimestamps,
                                          &bundle_.timestamps)}})}});
  }

  Status Entry(JsonValue& value, std::string_view what, int depth) {
    LogEntry& entry = bundle_.entry.emplace();
    const auto hashes = [&](JsonValue& list, std::string_view name, int at) {
      return ReadJsonArray(list, name, at, [&](JsonValue& item, int) -> Status {
        // A proof of a tree of 2^64 leaves has 64.
        if (entry.hashes.size() == 64) {
          return Status(Code::kLimit,
                        fmt::format("{} has more than 64 items", name));
        }
        HAULWAY_ASSIGN(std::string hash, ReadJsonBase64(item, name));
        entry.hashes.push_back(std::move(hash));
        return Status();
      });
    };
    return ReadKnown(
        value, what, depth,
        {{"logIndex", Number(&entry.index)},
         {"logId", Object({{"keyId", Bytes(&entry.log_id)}})},
         {"kindVersion", Object({{"kind", Text(&entry.kind)},
                                 {"version", Text(&entry.version)}})},
         {"integratedTime", Number(&entry.time)},
         {"inclusionPromise",
          Object({{"signedEntryTimestamp", Bytes(&entry.promise)}})},
         {"inclusionProof",
          Object({{"logIndex", Number(&entry.proof_index)},
                  {"rootHash", Bytes(&entry.root_hash)},
                  {"treeSize", Number(&entry.tree_size)},
                  {"hashes", hashes},
                  {"checkpoint",
                   Object({{"envelope", Text(&entry.checkpoint)}})}})},
         {"canonicalizedBody", Bytes(&entry.body)}});
  }

  Status Envelope(JsonValue& value, std::string_view what, int depth) {
    const auto signatures = [&](JsonValue& list, std::string_view name,
                                int at) {
      return ReadJsonArray(
          list, name, at, [&](JsonValue& item, int item_depth) {
            ++signatures_;
            return ReadKnown(
                item, name, item_depth,
                {{"sig", Bytes(&bundle_.signature)}, {"keyid", Ignored()}});
          });
    };
    return ReadKnown(value, what, depth,
                     {{"payload", Bytes(&bundle_.payload)},
                      {"payloadType", Text(&bundle_.payload_type)},
                      {"signatures", signatures}});
  }

  Result<Bundle> Check() {
    const auto wrong = [](std::string_view why) {
      return Status(Code::kCorrupt, why);
    };
    if (media_type_.empty()) return wrong("the bundle has no mediaType");
    if (media_type_ != kBundleType) {
      return Status(Code::kUnsupported,
                    fmt::format("the bundle is of type {}: expected {}",
                                Quote(media_type_), kBundleType));
    }
    if (!has_envelope_) return wrong("the bundle has no dsseEnvelope");
    if (signatures_ != 1) {
      return wrong(fmt::format("the envelope has {} signatures: expected 1",
                               signatures_));
    }
    if (bundle_.signature.empty()) return wrong("the signature is empty");
    if (has_key_ + has_chain_ + has_one_ != 1) {
      return wrong(
          "the bundle needs one of publicKey, x509CertificateChain and "
          "certificate");
    }
    if (has_chain_) {
      bundle_.kind = Bundle::Kind::kCertificates;
      bundle_.certificates = std::move(chain_);
      if (bundle_.certificates.empty()) {
        return wrong("the bundle's chain has no certificate");
      }
    }
    if (has_one_) {
      bundle_.kind = Bundle::Kind::kSigstore;
      bundle_.certificates.push_back(std::move(one_));
      if (!bundle_.entry.has_value()) {
        return wrong("the bundle has no log entry");
      }
    }
    return std::move(bundle_);
  }

  Bundle bundle_;
  std::string media_type_;
  std::vector<std::string> chain_;
  std::string one_;
  bool has_envelope_ = false, has_key_ = false, has_chain_ = false,
       has_one_ = false;
  int entries_ = 0, signatures_ = 0;
};

}  // namespace

Result<Bundle> ParseBundle(std::string_view text) {
  return BundleParser().Parse(text);
}

std::string WriteBundle(const Bundle& bundle) {
  std::string material;
  if (bundle.kind == Bundle::Kind::kKey) {
    material = fmt::format(R"("publicKey":{{"hint":{}}})",
                           JsonText(bundle.hint.value_or("")));
  } else {
    for (const std::string& certificate : bundle.certificates) {
      material += fmt::format(R"({}{{"rawBytes":"{}"}})",
                              material.empty() ? "" : ",", Base64(certificate));
    }
    material = fmt::format(R"("x509CertificateChain":{{"certificates":[{}]}})",
                           material);
  }
  return fmt::format(
      R"({{"mediaType":"{}","verificationMaterial":{{{},"tlogEntries":[]}},)"
      R"("dsseEnvelope":{{"payload":"{}","payloadType":"{}",)"
      R"("signatures":[{{"sig":"{}","keyid":""}}]}}}})",
      kBundleType, material, Base64(bundle.payload), kPayloadType,
      Base64(bundle.signature));
}

std::string SignedBytes(std::string_view payload_type,
                        std::string_view payload) {
  return fmt::format("DSSEv1 {} {} {} {}", payload_type.size(), payload_type,
                     payload.size(), payload);
}

std::string OldSignedBytes(std::string_view payload_type,
                           std::string_view payload) {
  // It signed Python's text of the bytes: b'...'.
  const bool is_double =
      payload.find('\'') != payload.npos && payload.find('"') == payload.npos;
  const char quote = is_double ? '"' : '\'';
  std::string text = fmt::format("b{}", quote);
  for (const char c : payload) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      text += '\\';
      text += c;
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '\r') {
      text += "\\r";
    } else if (c == '\t') {
      text += "\\t";
    } else if (byte < 0x20 || byte >= 0x7F) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  text += quote;
  return fmt::format("DSSEV1 {} {} {} {}", payload_type.size(), payload_type,
                     payload.size(), text);
}

}  // namespace haulway::signing
