#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "command.h"
#include "file_map.h"
#include "haulway/open.h"
#include "is_read.h"
#include "map_page.h"
#include "output.h"
#include "signature.h"

namespace haulway::cli {
namespace {

struct MapVerbOptions : Options {
  std::string out;
};

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
    HAULWAY_ASSIGN(auto source, OpenModel(options, file));
    HAULWAY_ASSIGN(const FileMap map,
                   MakeFileMap(std::move(source), options.open));
    HAULWAY_TRY(CompareSigned(SignatureScope::kRead));
    uint64_t page_bytes = 0;
    if (!options.out.empty()) {
      if (IsReadFrom(*map.checkpoint, file, options.out)) {
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

Runner AddMap(CLI::App& app) {
  const auto options = MakeOptions<MapVerbOptions>(app);
  AddBytes(app, *options);
  AddModel(app, *options);
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
    AddMap};

}  // namespace haulway::cli
