// The digests with which object stores identify bytes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "haulway/status.h"
#include "net/http_client.h"

namespace haulway::s3 {

std::string Base64(std::string_view bytes);
// Returns 16 bytes.
std::string Md5(std::string_view bytes);
// Returns the value of the header "x-amz-checksum-crc32": big-endian, Base64.
std::string Crc32Text(uint32_t crc);

// Compares the checksums of a response ("x-amz-checksum-*") with the bytes of
// the object, or of the part that was sent. Ignores those of a multipart
// upload's parts together. Fails with kMismatch.
Status CheckChecksums(const net::HttpResponse& response,
                      std::span<const std::byte> bytes);

// Compares a response to a PUT of these bytes with them: its checksums, and its
// ETag if that is an MD5. Fails with kMismatch.
Status CheckTaken(const net::HttpResponse& response, std::string_view bucket,
                  std::span<const std::byte> bytes);

}  // namespace haulway::s3
