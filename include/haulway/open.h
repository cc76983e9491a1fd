// From a name to the bytes that it means: the one place where names of files,
// folders, streams and schemes are understood.
//
//   model.pt, /m/model.pt, file:///m/model.pt   a local file
//   model/                                      a folder: its one checkpoint
//   -                                           standard input, or output
//
// What begins "SCHEME://" is of that scheme; everything else is a path.

#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/export.h"
#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

struct SourceOptions {
  // How files are read, as ByteSource::Reopen() takes it. What is no file is
  // read as it can be.
  IoMode io = IoMode::kMmap;
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
    std::string_view uri, const FileSinkOptions& options = {});

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
// Looks into no folder below. Fails with kNotFound if there is none, and with
// kInvalidArgument, naming them, if there are several.
HAULWAY_EXPORT Result<std::string> FindCheckpoint(std::string_view folder);

// The checkpoints in a folder and those below it, by path: the files whose
// names end as a format's do, and those that end in .index.json, but no file
// that one of these names. Fails as the system does.
HAULWAY_EXPORT Result<std::vector<std::string>> ListCheckpoints(
    std::string_view folder);
// All regular files in a folder and those below it, by path.
HAULWAY_EXPORT Result<std::vector<std::string>> ListFiles(
    std::string_view folder);

// Whether `uri` is the path of a folder.
HAULWAY_EXPORT bool IsFolder(std::string_view uri);

}  // namespace haulway
