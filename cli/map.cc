#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "command.h"
#include "file_map.h"
#include "haulway/open.h"
#include "map_page.h"
#include "output.h"

namespace haulway::cli {
namespace {

struct MapVerbOptions : Options {
  std::string out;
};

bool IsSame(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Returns whether `out` is a file that the map shows.
bool IsRead(const FileMap& map, const std::string& file,
            const std::string& out) {
  struct stat target, one;
  if (::stat(out.c_str(), &target) != 0) return false;
  const auto is_at = [&](const std::string& path) {
    return ::stat(path.c_str(), &one) == 0 && IsSame(target, one);
  };
  // A folder, or a name with "file://", does not name the opened file directly.
  const auto there = map.checkpoint->source().InFile(0, map.bytes);
  if (there.has_value() && ::fstat(there->fd, &one) == 0 &&
      IsSame(target, one)) {
    return true;
  }
  std::filesystem::path folder = file;
  if (!IsFolder(file)) folder = folder.parent_path();
  return is_at(file) || std::ranges::any_of(map.checkpoint->index().parts,
                                            [&](const Part& part) {
                                              return is_at(folder / part.name);
                                            });
}

std::string Page(const FileMap& map, const std::string& file) {
  const std::string data = PackFileMap(map, file);
  std::string page(kMapPageHead);
  page.reserve(page.size() + data.size() + kMapPageTail.size());
  // In JSON, '<' occurs only in strings. Without it, no name can close the
  // element that contains the data.
  for (const char c : data) {
    if (c == '<') {
      page += "\\u003c";
    } else {
      page += c;
    }
  }
  return page.append(kMapPageTail);
}

int MapFile(const MapVerbOptions& options) {
  const std::string& file = options.files.front();
  if (options.out.empty() && !options.json) {
    (void)Fail(options, Status(Code::kInvalidArgument,
                               "nothing to do: expected --out or --json"));
    return kUsage;
  }
  if (options.out == "-" && options.json) {
    (void)Fail(options,
               Status(Code::kInvalidArgument,
                      "--out - and --json both write to standard output"));
    return kUsage;
  }
  const auto run = [&]() -> Status {
    HAULWAY_ASSIGN(auto source, OpenInput(file));
    HAULWAY_ASSIGN(const FileMap map,
                   MakeFileMap(std::move(source), options.open));
    uint64_t page_bytes = 0;
    if (!options.out.empty()) {
      if (IsRead(map, file, options.out)) {
        return Status(Code::kInvalidArgument,
                      "the page would overwrite the file that it describes");
      }
      const std::string page = Page(map, ShownName(file));
      page_bytes = page.size();
      HAULWAY_TRY(WriteText(options.out, page));
    }
    if (options.json) {
      Json json;
      json.Begin('{').Key("file").Text(ShownName(file));
      AddFileMap(map, &json);
      json.End('}').Print();
    } else if (options.out != "-") {
      fmt::print("{}: {}, {}\n", Escape(ShownName(options.out)),
                 Counted(map.checkpoint->entries().size(), "tensor"),
                 Size(page_bytes, options.bytes));
    }
    return Status();
  };
  const Status status = run();
  return status.ok() ? kDone : Fail(options, status);
}

Runner Add(CLI::App& app) {
  const auto options = MakeOptions<MapVerbOptions>(app);
  AddBytes(app, *options);
  AddFile(app, *options);
  app.add_option("-o,--out", options->out,
                 "HTML page to write, or - for standard output");
  AddKey(app, *options);
  AddAllow(app, *options);
  return {options, [options] { return MapFile(*options); }};
}

}  // namespace

extern const Verb kMap = {
    "map", "Show the layout of a file, as a page for a browser or with --json",
    "haulway map model.pt -o model.html\n"
    "haulway map model/ --json",
    Add};

}  // namespace haulway::cli
