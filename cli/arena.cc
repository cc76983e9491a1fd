#include "haulway/arena.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "command.h"
#include "haulway/publish.h"
#include "output.h"

namespace haulway::cli {
namespace {

struct ArenaVerbOptions : Options {
  std::string action;
};

// Returns a recommended size: the maximum used, and half as much again.
uint64_t Advice(const ArenaStats& stats) {
  constexpr uint64_t kStep = uint64_t{1} << 20;
  const uint64_t wanted = stats.high_water + stats.high_water / 2;
  return (wanted + kStep - 1) / kStep * kStep;
}

void AddArenas(const std::vector<ArenaHolding>& arenas, Json* to) {
  Json& json = *to;
  json.Key("arenas").Begin('[');
  for (const ArenaHolding& arena : arenas) {
    const ArenaStats& stats = arena.stats;
    json.Begin('{').Key("pid").Number(stats.creator);
    json.Key("producer").Number(stats.producer);
    json.Key("bytes").Number(stats.bytes);
    json.Key("used").Number(stats.used);
    json.Key("high_water").Number(stats.high_water);
    json.Key("units").Number(stats.units);
    json.Key("waits").Number(stats.waits);
    json.Key("fallbacks").Number(stats.fallbacks);
    json.Key("overflows").Number(stats.overflows);
    json.Key("advised_bytes").Number(Advice(stats));
    json.Key("orphaned").Raw(arena.orphaned ? "true" : "false");
    json.Key("holders").Numbers(
        std::vector<int64_t>(arena.holders.begin(), arena.holders.end()));
    json.End('}');
  }
  json.End(']');
}

void AddPublications(const std::vector<PublicationFacts>& publications,
                     Json* to) {
  Json& json = *to;
  json.Key("publications").Begin('[');
  for (const PublicationFacts& facts : publications) {
    json.Begin('{').Key("name").Text(facts.name);
    json.Key("version").Number(facts.version);
    json.Key("bytes").Number(facts.bytes);
    json.Key("readers").Number(facts.readers);
    json.Key("held_bytes").Number(facts.held_bytes);
    json.Key("publisher").Number(facts.publisher).End('}');
  }
  json.End(']');
}

void PrintTable(const Options& options,
                const std::vector<ArenaHolding>& arenas) {
  const auto size = [&](uint64_t bytes) { return Size(bytes, options.bytes); };
  Table table("<><>><>><");
  table.Add({"pid", "producer", "holders", "bytes", "used", "high water",
             "waits", "fallbacks", "advice"});
  for (const ArenaHolding& arena : arenas) {
    const ArenaStats& stats = arena.stats;
    const bool is_small = stats.fallbacks > 0;
    table.Add(
        {fmt::format("{}{}", stats.creator, arena.orphaned ? " (gone)" : ""),
         std::to_string(stats.producer),
         fmt::format("{}", fmt::join(arena.holders, " ")), size(stats.bytes),
         size(stats.used), size(stats.high_water), std::to_string(stats.waits),
         std::to_string(stats.fallbacks),
         is_small ? "too small for some items"
                  : fmt::format("{} would do", size(Advice(stats)))});
  }
  table.Print();
}

void PrintTable(const Options& options,
                const std::vector<PublicationFacts>& publications) {
  const auto size = [&](uint64_t bytes) { return Size(bytes, options.bytes); };
  Table table("<>>>><");
  table.Add({"name", "version", "bytes", "readers", "held", "publisher"});
  for (const PublicationFacts& facts : publications) {
    table.Add(
        {Escape(facts.name), std::to_string(facts.version), size(facts.bytes),
         std::to_string(facts.readers), size(facts.held_bytes),
         facts.publisher == 0 ? "gone" : std::to_string(facts.publisher)});
  }
  table.Print();
}

int List(const Options& options) {
  Result<std::vector<ArenaHolding>> arenas = ListArenas();
  if (!arenas.ok()) return Fail(options, arenas.status());
  Result<std::vector<PublicationFacts>> publications = ListPublications();
  if (!publications.ok()) return Fail(options, publications.status());
  if (options.json) {
    Json json;
    json.Begin('{');
    AddArenas(*arenas, &json);
    AddPublications(*publications, &json);
    json.End('}').Print();
    return kDone;
  }
  if (arenas->empty()) {
    fmt::print("no arenas\n");
  } else {
    PrintTable(options, *arenas);
  }
  if (!publications->empty()) {
    fmt::print("\n");
    PrintTable(options, *publications);
  }
  return kDone;
}

int Sweep(const Options& options) {
  Result<std::vector<ArenaHolding>> arenas = ListArenas();
  if (!arenas.ok()) return Fail(options, arenas.status());
  const Result<std::vector<std::string>> swept = SweepPublications();
  if (!swept.ok()) return Fail(options, swept.status());
  // The system frees memory without a name with its last holder, so dead
  // processes leave none. What can remain is memory that a living process still
  // holds, and the small files of names.
  std::erase_if(*arenas,
                [](const ArenaHolding& arena) { return !arena.orphaned; });
  if (options.json) {
    Json json;
    json.Begin('{');
    AddArenas(*arenas, &json);
    json.Key("swept").Begin('[');
    for (const std::string& name : *swept) json.Text(name);
    json.End(']').End('}').Print();
    return arenas->empty() ? kDone : kFound;
  }
  if (!swept->empty()) {
    fmt::print("removed the names of {}\n", fmt::join(*swept, ", "));
  }
  if (!arenas->empty()) {
    fmt::print(
        "still held although their creators have ended; freed when the holders "
        "end:\n");
    PrintTable(options, *arenas);
  } else if (swept->empty()) {
    fmt::print("nothing was left behind\n");
  }
  return arenas->empty() ? kDone : kFound;
}

int ShowArenas(const ArenaVerbOptions& options) {
  return options.action == "sweep" ? Sweep(options) : List(options);
}

Runner AddArena(CLI::App& app) {
  const auto options = MakeOptions<ArenaVerbOptions>(app);
  AddBytes(app, *options);
  OneOf(app.add_option(
            "ACTION", options->action,
            "ls: list all arenas; sweep: list arenas whose creator has ended"),
        {"ls", "sweep"})
      ->required();
  return {options, [options] { return ShowArenas(*options); }};
}

}  // namespace

extern const Verb kArena = {"arena",
                            "Show arenas of shared memory that are in use",
                            "haulway arena ls --json\n"
                            "haulway arena sweep",
                            AddArena};

}  // namespace haulway::cli
