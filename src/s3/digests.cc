// Design: a response may name several digests of the bytes that were sent. Only
// those that it names are computed, all in one pass over the bytes, in pieces,
// so that a part that lies in a file needs no memory. The usual response
// repeats the CRC-32 that was sent with the bytes; then nothing is read again.
//
// An ETag counts as an MD5 only where stores agree that it is one: stores that
// encrypt with a key of their own or of the caller, and directory buckets, have
// others. The digests of a whole upload follow from those of its parts.

#include "s3/digests.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/ascii.h"
#include "base/digest.h"
#include "base/text.h"
#include "s3/xml.h"

namespace haulway::s3 {

namespace {

using StoredBytes = std::span<const std::byte>;

template <typename T>
std::string BigEndian(T number) {
  std::string bytes;
  for (int bit = 8 * sizeof(T) - 8; bit >= 0; bit -= 8) {
    bytes += static_cast<char>(number >> bit & 0xFF);
  }
  return bytes;
}

// A digest of bytes that come in pieces.
class Digester {
 public:
  virtual ~Digester() = default;
  virtual void Add(StoredBytes bytes) = 0;
  virtual std::string Finish() = 0;
};

class EvpDigester : public Digester {
 public:
  explicit EvpDigester(const EVP_MD* kind) {
    ::EVP_DigestInit_ex(context_.get(), kind, nullptr);
  }
  void Add(StoredBytes bytes) override {
    ::EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
  }
  std::string Finish() override {
    std::string digest(EVP_MAX_MD_SIZE, '\0');
    unsigned size = 0;
    ::EVP_DigestFinal_ex(
        context_.get(), reinterpret_cast<unsigned char*>(digest.data()), &size);
    digest.resize(size);
    return digest;
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { ::EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_{::EVP_MD_CTX_new()};
};

class Crc32Digester : public Digester {
 public:
  void Add(StoredBytes bytes) override { crc_ = Crc32(crc_, bytes); }
  std::string Finish() override { return BigEndian(crc_); }

 private:
  uint32_t crc_ = 0;
};

// A CRC, reflected, with all ones at its beginning and end. Few stores send
// one that Haulway did not: no speed is needed.
template <typename T>
class CrcDigester : public Digester {
 public:
  explicit CrcDigester(T polynomial) {
    for (size_t i = 0; i < table_.size(); ++i) {
      T value = i;
      for (int bit = 0; bit < 8; ++bit) {
        value = (value & 1) != 0 ? value >> 1 ^ polynomial : value >> 1;
      }
      table_[i] = value;
    }
  }
  void Add(StoredBytes bytes) override {
    for (const std::byte byte : bytes) {
      crc_ = crc_ >> 8 ^ table_[(crc_ ^ static_cast<T>(byte)) & 0xFF];
    }
  }
  std::string Finish() override { return BigEndian<T>(~crc_); }

 private:
  std::array<T, 256> table_;
  T crc_ = ~T{0};
};

using DigesterPtr = std::unique_ptr<Digester>;

// All checksums of S3, and what computes each.
struct Checksum {
  std::string_view header;
  DigesterPtr (*make)();
};
constexpr std::string_view kCrc32 = "x-amz-checksum-crc32";
constexpr Checksum kChecksums[] = {
    {kCrc32, []() -> DigesterPtr { return std::make_unique<Crc32Digester>(); }},
    {"x-amz-checksum-crc32c",
     []() -> DigesterPtr {
       return std::make_unique<CrcDigester<uint32_t>>(0x82F63B78);
     }},
    {"x-amz-checksum-crc64nvme",
     []() -> DigesterPtr {
       return std::make_unique<CrcDigester<uint64_t>>(0x9A6C9329AC4BC9B5);
     }},
    {"x-amz-checksum-sha1",
     []() -> DigesterPtr {
       return std::make_unique<EvpDigester>(::EVP_sha1());
     }},
    {"x-amz-checksum-sha256",
     []() -> DigesterPtr {
       return std::make_unique<EvpDigester>(::EVP_sha256());
     }},
};

std::string HexText(std::string_view bytes) {
  return Hex(std::as_bytes(std::span(bytes)));
}

Status Differs(std::string_view what, std::string_view ours,
               std::string_view theirs) {
  return Status(Code::kMismatch,
                fmt::format("the store's {} is not that of the bytes: expected "
                            "{}, found {}",
                            what, ours, Quote(theirs)));
}

// A digest that a response names.
struct Named {
  std::string_view what;
  std::string_view theirs;
  std::string (*text)(std::string_view digest);
  DigesterPtr digester;
};

std::vector<Named> ChecksumsIn(const net::HttpResponse& response) {
  std::vector<Named> named;
  // "COMPOSITE": a digest of the parts' digests, with their number behind it.
  if (response.Header("x-amz-checksum-type") == "COMPOSITE") return named;
  for (const Checksum& one : kChecksums) {
    const std::string_view theirs = response.Header(one.header);
    if (theirs.empty() || theirs.find('-') != theirs.npos) continue;
    named.push_back({one.header, theirs, Base64, one.make()});
  }
  return named;
}

Status Compare(std::span<Named> named, const SentBytes& bytes) {
  if (named.empty()) return Status();
  HAULWAY_TRY(bytes([&](StoredBytes piece) {
    for (const Named& one : named) one.digester->Add(piece);
  }));
  for (const Named& one : named) {
    const std::string ours = one.text(one.digester->Finish());
    if (ours != one.theirs) return Differs(one.what, ours, one.theirs);
  }
  return Status();
}

// Compares "<MD5 of the parts' MD5s>-<number of parts>".
Status CheckJoinedMd5(std::string_view etag, std::span<const TakenPart> parts) {
  if (etag.size() > 2 && etag.front() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  const size_t dash = etag.find('-');
  if (dash == etag.npos ||
      Md5In(fmt::format("\"{}\"", etag.substr(0, dash))).empty()) {
    return Status();
  }
  EvpDigester together(::EVP_md5());
  for (const TakenPart& part : parts) {
    const std::string_view md5 = Md5In(part.etag);
    if (md5.empty()) return Status();
    std::array<std::byte, 16> bytes;
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(*HexDigit(md5[2 * i]) << 4 |
                                        *HexDigit(md5[2 * i + 1]));
    }
    together.Add(bytes);
  }
  const std::string ours =
      fmt::format("{}-{}", HexText(together.Finish()), parts.size());
  return ours == etag ? Status() : Differs("ETag", ours, etag);
}

// Compares the CRC-32 of the object, or that of the parts' CRCs.
Status CheckJoinedCrc(const net::HttpResponse& response,
                      std::span<const TakenPart> parts) {
  const std::string theirs = XmlText(response.body, "ChecksumCRC32");
  if (theirs.empty()) return Status();
  std::string all;
  uint32_t whole = 0;
  for (const TakenPart& part : parts) {
    if (part.crc32.empty()) return Status();
    all += BigEndian(part.crc);
    whole = Crc32Join(whole, part.crc, part.size);
  }
  const size_t dash = theirs.find('-');
  const bool is_composite =
      dash != theirs.npos ||
      XmlText(response.body, "ChecksumType") == "COMPOSITE";
  const uint32_t crc =
      is_composite ? Crc32(0, std::as_bytes(std::span(all))) : whole;
  const std::string ours = Crc32Text(crc);
  return ours == theirs.substr(0, dash) ? Status()
                                        : Differs("CRC-32", ours, theirs);
}

}  // namespace

std::string Md5(std::string_view bytes) {
  EvpDigester digester(::EVP_md5());
  digester.Add(std::as_bytes(std::span(bytes)));
  return digester.Finish();
}

std::string Crc32Text(uint32_t crc) { return Base64(BigEndian(crc)); }

Status CheckChecksums(const net::HttpResponse& response, StoredBytes bytes) {
  auto named = ChecksumsIn(response);
  return Compare(named, [bytes](const TakePiece& take) {
    take(bytes);
    return Status();
  });
}

bool HasMd5(const net::HttpResponse& response, std::string_view bucket) {
  const std::string_view encryption =
      response.Header("x-amz-server-side-encryption");
  return (encryption.empty() || encryption == "AES256") &&
         response.Header("x-amz-server-side-encryption-customer-algorithm")
             .empty() &&
         !bucket.ends_with("--x-s3");
}

std::string_view Md5In(std::string_view etag) {
  if (etag.size() != 34) return {};
  etag = etag.substr(1, 32);
  const bool is_hex = std::ranges::all_of(etag, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
  return is_hex ? etag : std::string_view();
}

Status CheckTaken(const net::HttpResponse& response, bool has_md5,
                  std::string_view crc32, const SentBytes& bytes) {
  if (!crc32.empty() && response.Header(kCrc32) == crc32) return Status();
  auto named = ChecksumsIn(response);
  const std::string_view md5 = Md5In(response.Header("etag"));
  if (has_md5 && !md5.empty()) {
    named.push_back(
        {"ETag", md5, HexText, std::make_unique<EvpDigester>(::EVP_md5())});
  }
  return Compare(named, bytes);
}

Status CheckJoined(const net::HttpResponse& response, bool has_md5,
                   std::span<const TakenPart> parts) {
  HAULWAY_TRY(CheckJoinedCrc(response, parts));
  return has_md5 ? CheckJoinedMd5(XmlText(response.body, "ETag"), parts)
                 : Status();
}

}  // namespace haulway::s3
