// The command line as a function, for what brings no program of its own.

#pragma once

namespace haulway {

// Runs the command with the words of its command line, the first of which is
// its name, and returns the code to exit with. Takes SIGINT and SIGBUS over,
// writes to the standard streams, and is called once in a process.
int RunCommand(int argc, char** argv);

}  // namespace haulway
