// Runs the command line for the script that Python installers generate.

#include "bind/command.h"

#include <clocale>
#include <cstdlib>
#include <string>
#include <vector>

namespace nb = nanobind;

namespace haulway {

// Defined in cli/main.cc. Runs the command and returns the exit code.
int RunCommand(int argc, char** argv);

namespace python {

namespace {

// Runs the command and ends the process as the program does, without finalizing
// Python.
[[noreturn]] void RunCommandAndExit(const nb::list& words) {
  std::vector<std::string> texts;
  for (const nb::handle word : words) {
    const auto bytes = nb::cast<nb::bytes>(word);
    texts.emplace_back(bytes.c_str(), bytes.size());
  }
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  std::setlocale(LC_ALL, "C");  // Undoes Python's setlocale().
  // The GIL stays held: Python has no other thread here.
  std::exit(RunCommand(static_cast<int>(texts.size()), argv.data()));
}

}  // namespace

void BindCommand(nb::module_& module) {
  module.def("run_command", &RunCommandAndExit);
}

}  // namespace python
}  // namespace haulway
