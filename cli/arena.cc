#include "haulway/arena.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "command.h"
#include "output.h"

namespace haulway::cli {
namespace {

struct ArenaVerbOptions : Options {
  std::string action;
};

// Room for what was used at most, and half as much again.
uint64_t Advice(const ArenaStats& stats) {
  constexpr uint64_t kStep = uint64_t{1} << 20;
  const uint64_t wanted = stats.high_water + stats.high_water / 2;
  return (wanted + kStep - 1) / kStep * kStep;
}

void PrintJson(const std::vector<ArenaHolding>& arenas) {
  Json json;
  json.Begin('{').Key("arenas").Begin('[');
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
  json.End(']').End('}').Print();
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

int List(const Options& options) {
  Result<std::vector<ArenaHolding>> arenas = ListArenas();
  if (!arenas.ok()) return Fail(options, arenas.status());
  if (options.json) {
    PrintJson(*arenas);
  } else if (!arenas->empty()) {
    PrintTable(options, *arenas);
  } else {
    fmt::print("no arenas\n");
  }
  return kDone;
}

int Sweep(const Options& options) {
  Result<std::vector<ArenaHolding>> arenas = ListArenas();
  if (!arenas.ok()) return Fail(options, arenas.status());
  // Memory without a name goes with its last holder, so the dead leave none
  // behind: all there can be is a living process that holds on to it.
  std::erase_if(*arenas,
                [](const ArenaHolding& arena) { return !arena.orphaned; });
  if (options.json) {
    PrintJson(*arenas);
  } else if (arenas->empty()) {
    fmt::print("nothing was left behind\n");
  } else {
    fmt::print(
        "held though their makers are gone; they end with the holders:\n");
    PrintTable(options, *arenas);
  }
  return arenas->empty() ? kDone : kFound;
}

int ShowArenas(const ArenaVerbOptions& options) {
  return options.action == "sweep" ? Sweep(options) : List(options);
}

Runner Add(CLI::App& app) {
  const auto options = MakeOptions<ArenaVerbOptions>(app);
  AddBytes(app, *options);
  app.add_option("ACTION", options->action,
                 "ls: all of it; sweep: what the dead left, if anything")
      ->required()
      ->check(CLI::IsMember({"ls", "sweep"}));
  return {options, [options] { return ShowArenas(*options); }};
}

}  // namespace

extern const Verb kArena = {"arena", "Show shared memory that is in use",
                            "haulway arena ls --json\n"
                            "haulway arena sweep",
                            Add};

}  // namespace haulway::cli
