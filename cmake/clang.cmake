# Builds with Clang: version 16 where it is installed, because Debian 12's own
# choice is 14, or else the system's choice. scripts/setup installs the same.
find_program(CMAKE_CXX_COMPILER NAMES clang++-16 clang++ REQUIRED)
