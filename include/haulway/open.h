// From a name to the bytes that it means: the one place where names of files,
// folders, streams and schemes are understood, and what reaching servers takes:
// patience, retries, trust, proxies, and in whose name they are asked.
//
//   model.pt, /m/model.pt, file:///m/model.pt   a local file
//   model/                                      a folder: its one checkpoint
//   https://host/model.pt, http://...           an object of a server, read by
//                                               ranges: see docs/remote.md
//   s3://bucket/key                             an object of a store: see
//                                               docs/s3.md
//   s3://bucket/prefix/                         a folder: the one checkpoint
//                                               of the objects there
//   redis://host/prefix, rediss://, redis+unix://   what lies in Redis: see
//                                               docs/redis.md
//   hf://org/name[@revision][/path]             a file of a model hub: see
//                                               docs/remote.md
//   -                                           standard input, or output
//
// What begins "SCHEME://" is of that scheme; everything else is a path.
//
// Nothing secret is printed, logged or part of a message: not headers, tokens,
// passwords in URLs, nor query strings.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/fields.h"
#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

struct HttpHeader {
  std::string name;
  std::string value;
};

struct RemoteOptions {
  // Sent with every request to the host that the URL names. Neither these nor
  // the other credentials follow a redirect to another host, port or scheme.
  std::vector<HttpHeader> headers;
  std::string bearer_token;  // "Authorization: Bearer ..."; empty: none.
  // A file of the form of ~/.netrc, where a host's name and password are
  // looked up; empty: none.
  std::string netrc;

  // Trust. Empty: the system's certificates.
  std::string ca_file;
  std::string ca_dir;
  // PEM; the key may stand in the same file.
  std::string client_certificate;
  std::string client_key;
  // Takes any certificate of a server: whoever is in between reads and changes
  // what passes.
  bool insecure = false;
  // Follows a redirect from https to http.
  bool allow_downgrade = false;

  // "http://host:port", as curl takes it; empty: none.
  std::string proxy;
  // Hosts that are asked without it, by commas.
  std::string no_proxy;
  // Takes the proxies of http_proxy, https_proxy, all_proxy and no_proxy where
  // `proxy` is empty.
  bool proxy_from_environment = false;

  std::chrono::milliseconds connect_timeout{10'000};
  // A request that brings less than 1 kB a second for so long is made again.
  std::chrono::milliseconds stall_timeout{30'000};
  // For all of one call, retries included; 0: none.
  std::chrono::milliseconds deadline{0};
  // Retries of one request in a row that brought nothing.
  int retries = 5;
  // Retries of all requests together, of which each that succeeds gives back a
  // tenth.
  int retry_budget = 40;
  // Before the n-th retry a random time of up to first_wait * 2^n passes, and
  // never more than longest_wait, whatever the server asks for.
  std::chrono::milliseconds first_wait{200};
  std::chrono::milliseconds longest_wait{20'000};
  // Requests in flight at once.
  int connections = 16;
  bool http2 = false;  // Where the server can: one connection for all.

  // A folder in which what was read of an object is kept, for other processes
  // too; empty: nothing is. What cannot be told from another object of the
  // same name (by a strong ETag, a version or a time of change) is not kept.
  std::string cache_folder;
  // Of all objects in that folder; those used longest ago make room.
  uint64_t most_cached_bytes = uint64_t{64} << 30;

  // Set to true to end what waits for a server within a tenth of a second.
  const std::atomic<bool>* cancel = nullptr;
};

struct SourceOptions {
  // How files are read, as ByteSource::Reopen() takes it. What is no file is
  // read as it can be.
  IoMode io = IoMode::kMmap;
  // How what is behind a URL is reached.
  RemoteOptions remote{};
  // With kMmap: writing to a View() writes to the file, which must be writable.
  // What is no local file is refused with kUnsupported.
  bool write_through = false;
};

struct SinkOptions {
  // What becomes of files, and of what is there already.
  FileSinkOptions file{};
  // How what is behind a URL is reached.
  RemoteOptions remote{};
};

// Opens what `uri` names. Standard input, and descriptors by the names
// /dev/stdin and /dev/fd/N where they are no files, are read to their end into
// memory. A folder is opened as the file in it by which its checkpoint is
// opened, see FindCheckpoint(). Fails with kUnsupported, naming it, for a
// scheme that is not served, with kInvalidArgument for a file:// URI that is
// none, as FindCheckpoint() does for folders, and as OpenFileSource() does.
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> OpenSource(
    std::string_view uri, const SourceOptions& options = {});

// Opens what `uri` names for writing: a local file, as OpenFileSink() does, or
// standard output, to which bytes go in order and as they come. Fails with
// kUnsupported, naming it, for a scheme that is not served.
HAULWAY_EXPORT Result<std::unique_ptr<ByteSink>> OpenSink(
    std::string_view uri, const SinkOptions& options = {});

// Several checkpoints as one: a source that every function here opens,
// verifies and scans as the dict of the tensors of all, each by the name that
// it has in its own. They may be of several formats. Two that hold one name
// are refused when it is opened. Fails with kInvalidArgument for no source.
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> ListSources(
    std::vector<std::shared_ptr<const ByteSource>> sources);
// Of what these names mean; of one, simply that. Fails as OpenSource() does.
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> OpenSources(
    std::span<const std::string> uris, const SourceOptions& options = {});

// The file by which the checkpoint in a folder is opened: the first there is
// of model.safetensors.index.json, model.safetensors,
// pytorch_model.bin.index.json and pytorch_model.bin, else the one file whose
// name ends in .index.json, else the one whose name ends as a format's do.
// Looks into no folder below. Fails with kNotFound if there is none, with
// kInvalidArgument, naming them, if there are several, and as listing does.
HAULWAY_EXPORT Result<std::string> FindCheckpoint(
    std::string_view folder, const RemoteOptions& remote = {});

// The checkpoints in a folder and those below it, by name: the files whose
// names end as a format's do, and those that end in .index.json, but no file
// that one of these names. Fails as the system does, and requests.
HAULWAY_EXPORT Result<std::vector<std::string>> ListCheckpoints(
    std::string_view folder, const RemoteOptions& remote = {});
// All regular files in a folder and those below it, by name: those of an s3://
// folder are the objects whose keys begin with its own.
HAULWAY_EXPORT Result<std::vector<std::string>> ListFiles(
    std::string_view folder, const RemoteOptions& remote = {});

// Whether `uri` names a folder: a path that is one, or an s3:// name that ends
// in '/' or is only a bucket's. Asks no server.
HAULWAY_EXPORT bool IsFolder(std::string_view uri);

// A name as it may be shown: of a URL neither user, password nor query.
HAULWAY_EXPORT std::string ShownName(std::string_view uri);

// What other tools take from the environment: proxies, and the certificates of
// SSL_CERT_FILE, SSL_CERT_DIR and CURL_CA_BUNDLE. Nothing else of the library
// reads the environment for http.
HAULWAY_EXPORT RemoteOptions RemoteOptionsFromEnvironment();

// All bytes of a source as a local file, which goes on where it was stopped.
struct DownloadOptions {
  int threads = 0;  // 0: as many as the source pays off.
  // Called with bytes there and bytes in all, from one thread at a time.
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
  // Called with the path of the whole file before it takes its name; a failure
  // is the download's, and what was brought is thrown away.
  std::function<Status(const std::string& path)> check = nullptr;
};

struct DownloadStats {
  uint64_t bytes = 0;          // Of the file.
  uint64_t resumed_bytes = 0;  // That an earlier run had brought.
  double seconds = 0;
  // Of servers; 0 for others.
  uint64_t requests = 0;
  uint64_t retries = 0;
};

inline constexpr Field<DownloadStats> kDownloadStatFields[] = {
    {"bytes", &DownloadStats::bytes, "of the file", Adding::kSum},
    {"seconds", &DownloadStats::seconds, "of the call", Adding::kSum},
    {"requests", &DownloadStats::requests, "made of servers", Adding::kSum},
    {"retries", &DownloadStats::retries, "requests made again", Adding::kSum},
    {"resumed_bytes", &DownloadStats::resumed_bytes,
     "that an earlier run had brought", Adding::kSum},
};
inline std::span<const Field<DownloadStats>> FieldsOf(const DownloadStats&) {
  return kDownloadStatFields;
}

// Brings `source` to the file `path`. Until it is whole it grows beside it as
// ".NAME.haulway-part", with ".NAME.haulway-part.state", which says of what
// object which parts are there; a run that was stopped leaves both, and the
// next one brings what is missing, if the object is still that one. Then it
// takes its name in one step. Fails as the source and the system do, and with
// kUnavailable while another process brings the same file.
HAULWAY_EXPORT Result<DownloadStats> Download(
    const ByteSource& source, std::string_view path,
    const DownloadOptions& options = {});

// What OpenSource() and OpenSink() find for s3:// names in the environment can
// be said here; what is empty is looked for there still. docs/s3.md has the
// order.
struct S3Options {
  std::string access_key, secret_key, session_token;
  bool anonymous = false;  // Requests are not signed.
  std::string profile;  // Named here, it goes before keys of the environment.
  std::string region;
  std::string endpoint;    // "https://host[:port][/path]".
  std::string addressing;  // "path" or "virtual"; else as the endpoint wants.
  bool requester_pays = false;
  // 32 bytes with which the service encrypts and decrypts (SSE-C); https only.
  std::string customer_key;
  // A CRC-32 with what is uploaded; by default where the service is AWS's.
  std::optional<bool> checksums = std::nullopt;
  // The value of a variable, empty if it is not set; by default the process's.
  std::function<std::string(std::string_view name)> environment = nullptr;
};

// An object, read by ranges of one version of it. Fails with kInvalidArgument
// for what is no s3://BUCKET/KEY[?versionId=V], kAuth if there are no
// credentials, and as requests over HTTP do: kNotFound, kPermissionDenied,
// kUnavailable, kTimeout, kCorrupt (it was replaced meanwhile).
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> OpenS3Source(
    std::string_view uri, const S3Options& options = {},
    const RemoteOptions& remote = {});

// An object in the making, uploaded in parts while it is written, with
// `remote.connections` but no more than 128 MiB on the way. It appears by
// Commit(), whole; without it, or after a failure, the upload is ended, and
// where even that fails the message says how to. Of `file` only `existing` has
// an effect. An ordered sink. Fails with kInvalidArgument for what is no
// s3://BUCKET/KEY, kAuth if there are no credentials, and as requests over HTTP
// do: kNotFound, kPermissionDenied, kUnavailable, kTimeout.
HAULWAY_EXPORT Result<std::unique_ptr<ByteSink>> OpenS3Sink(
    std::string_view uri, const S3Options& options = {},
    const FileSinkOptions& file = {}, const RemoteOptions& remote = {});

// Ends uploads that were begun and neither finished nor ended: those of one
// object, or for a name that ends in '/' of all below it. Returns how many.
HAULWAY_EXPORT Result<uint64_t> AbortS3Uploads(
    std::string_view uri, const S3Options& options = {},
    const RemoteOptions& remote = {});

// A URL by which whoever has it may GET the object for `seconds` from now on,
// at most a week.
HAULWAY_EXPORT Result<std::string> PresignS3(std::string_view uri,
                                             uint64_t seconds,
                                             const S3Options& options = {});

}  // namespace haulway
