#include "s3/digests.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "base/text.h"

namespace haulway::s3 {

namespace {

using StoredBytes = std::span<const std::byte>;

std::string_view TextOf(StoredBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string DigestOf(const EVP_MD* kind, std::string_view bytes) {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned size = 0;
  ::EVP_Digest(bytes.data(), bytes.size(),
               reinterpret_cast<unsigned char*>(digest.data()), &size, kind,
               nullptr);
  digest.resize(size);
  return digest;
}

template <typename T>
std::string BigEndian(T number) {
  std::string bytes;
  for (int bit = 8 * sizeof(T) - 8; bit >= 0; bit -= 8) {
    bytes += static_cast<char>(number >> bit & 0xFF);
  }
  return bytes;
}

// Returns a CRC, reflected, with all ones at its beginning and end. Few of
// these are as long as a part: no speed is needed.
template <typename T>
std::string Crc(T polynomial, StoredBytes bytes) {
  std::array<T, 256> table;
  for (size_t i = 0; i < table.size(); ++i) {
    T value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value & 1) != 0 ? value >> 1 ^ polynomial : value >> 1;
    }
    table[i] = value;
  }
  T crc = ~T{0};
  for (const std::byte byte : bytes) {
    crc = crc >> 8 ^ table[(crc ^ static_cast<T>(byte)) & 0xFF];
  }
  return BigEndian<T>(~crc);
}

// All checksums of S3, and the function for each.
struct Checksum {
  std::string_view header;
  std::string (*of)(StoredBytes bytes);
};
constexpr Checksum kChecksums[] = {
    {"x-amz-checksum-crc32",
     [](StoredBytes bytes) { return Crc<uint32_t>(0xEDB88320, bytes); }},
    {"x-amz-checksum-crc32c",
     [](StoredBytes bytes) { return Crc<uint32_t>(0x82F63B78, bytes); }},
    {"x-amz-checksum-crc64nvme",
     [](StoredBytes bytes) {
       return Crc<uint64_t>(0x9A6C9329AC4BC9B5, bytes);
     }},
    {"x-amz-checksum-sha1",
     [](StoredBytes bytes) { return DigestOf(::EVP_sha1(), TextOf(bytes)); }},
    {"x-amz-checksum-sha256",
     [](StoredBytes bytes) { return DigestOf(::EVP_sha256(), TextOf(bytes)); }},
};

Status Differs(std::string_view what, std::string_view ours,
               std::string_view theirs) {
  return Status(Code::kMismatch,
                fmt::format("the store's {} is not that of the bytes: expected "
                            "{}, found {}",
                            what, ours, Quote(theirs)));
}

// Returns the MD5 in an ETag, or an empty string. That of an encrypted object,
// or of a directory bucket, is none though it may look so.
std::string_view Md5In(const net::HttpResponse& response,
                       std::string_view bucket) {
  const std::string_view encryption =
      response.Header("x-amz-server-side-encryption");
  const bool is_other =
      (!encryption.empty() && encryption != "AES256") ||
      !response.Header("x-amz-server-side-encryption-customer-algorithm")
           .empty() ||
      bucket.ends_with("--x-s3");
  std::string_view tag = response.Header("etag");
  if (tag.size() != 34 || is_other) return {};
  tag = tag.substr(1, 32);
  const bool is_hex = std::ranges::all_of(tag, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
  return is_hex ? tag : std::string_view();
}

}  // namespace

std::string Base64(std::string_view bytes) {
  std::string out(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int size =
      ::EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                        reinterpret_cast<const unsigned char*>(bytes.data()),
                        static_cast<int>(bytes.size()));
  out.resize(static_cast<size_t>(size));
  return out;
}

std::string Md5(std::string_view bytes) { return DigestOf(::EVP_md5(), bytes); }

std::string Crc32Text(uint32_t crc) { return Base64(BigEndian(crc)); }

Status CheckChecksums(const net::HttpResponse& response, StoredBytes bytes) {
  // "COMPOSITE": a digest of the parts' digests, with their number behind it.
  if (response.Header("x-amz-checksum-type") == "COMPOSITE") return Status();
  for (const Checksum& one : kChecksums) {
    const std::string_view theirs = response.Header(one.header);
    if (theirs.empty() || theirs.find('-') != theirs.npos) continue;
    const std::string ours = Base64(one.of(bytes));
    if (ours != theirs) return Differs(one.header, ours, theirs);
  }
  return Status();
}

Status CheckTaken(const net::HttpResponse& response, std::string_view bucket,
                  StoredBytes bytes) {
  HAULWAY_TRY(CheckChecksums(response, bytes));
  const std::string_view theirs = Md5In(response, bucket);
  if (theirs.empty()) return Status();
  const std::string digest = Md5(TextOf(bytes));
  const std::string ours = Hex(std::as_bytes(std::span(digest)));
  return ours == theirs ? Status() : Differs("ETag", ours, theirs);
}

}  // namespace haulway::s3
