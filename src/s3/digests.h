// The digests with which object stores identify bytes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "haulway/status.h"
#include "net/http_client.h"

namespace haulway::s3 {

// Returns 16 bytes.
std::string Md5(std::string_view bytes);
// Returns the value of the header "x-amz-checksum-crc32": big-endian, Base64.
std::string Crc32Text(uint32_t crc);

// Compares the checksums of a response ("x-amz-checksum-*") with the bytes of
// the object. Ignores those of a multipart upload's parts together. Fails with
// kMismatch.
Status CheckChecksums(const net::HttpResponse& response,
                      std::span<const std::byte> bytes);

// Returns whether the ETags of an upload are MD5s as far as a response tells:
// those of an encrypted object, or of a directory bucket, only look so.
bool HasMd5(const net::HttpResponse& response, std::string_view bucket);
// Returns the MD5 in an ETag, as 32 digits, or an empty string.
std::string_view Md5In(std::string_view etag);

// Bytes that were sent: calls `take` with each piece. Fails if they cannot be
// read again.
using TakePiece = std::function<void(std::span<const std::byte>)>;
using SentBytes = std::function<Status(const TakePiece& take)>;

// Compares a response to a PUT with the bytes that were sent: its checksums,
// and, if `has_md5`, its ETag. `crc32`: the value of the checksum header that
// was sent, or empty; if the store repeats it, nothing else is computed. Fails
// with kMismatch, and as `bytes` does.
Status CheckTaken(const net::HttpResponse& response, bool has_md5,
                  std::string_view crc32, const SentBytes& bytes);

// A part that a store took.
struct TakenPart {
  std::string etag;
  // The value of the checksum header that was sent, or empty, and the number.
  std::string crc32;
  uint32_t crc = 0;
  uint64_t size = 0;
};

// Compares the response to the end of an upload with its parts: its checksum,
// and, if `has_md5`, its ETag. Fails with kMismatch.
Status CheckJoined(const net::HttpResponse& response, bool has_md5,
                   std::span<const TakenPart> parts);

}  // namespace haulway::s3
