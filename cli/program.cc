#include "run_command.h"

int main(int argc, char** argv) { return haulway::RunCommand(argc, argv); }
