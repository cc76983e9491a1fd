# What the library is linked with, from the packages of the distribution.
#
# What is missing is listed at once, with the names that Debian has for it.
set(haulway_missing)

# haulway_need(PACKAGE FOUND-VARIABLE): notes a Debian package as missing.
macro(haulway_need package found)
  if(NOT ${found})
    list(APPEND haulway_missing ${package})
  endif()
endmacro()

find_package(Threads REQUIRED)
find_package(PkgConfig QUIET)
haulway_need(pkg-config PKG_CONFIG_FOUND)
foreach(library libdeflate libsodium liburing)
  if(PKG_CONFIG_FOUND)
    pkg_check_modules(${library} QUIET IMPORTED_TARGET ${library})
  endif()
  haulway_need(${library}-dev ${library}_FOUND)
endforeach()
find_package(fmt QUIET)
haulway_need(libfmt-dev fmt_FOUND)
find_package(simdjson QUIET)
haulway_need(libsimdjson-dev simdjson_FOUND)
find_package(OpenSSL QUIET COMPONENTS Crypto)
haulway_need(libssl-dev OPENSSL_FOUND)
if(HAULWAY_BUILD_CLI)
  find_package(CLI11 QUIET)
  haulway_need(libcli11-dev CLI11_FOUND)
endif()
if(BUILD_TESTING)
  find_package(GTest QUIET)
  haulway_need(libgtest-dev GTest_FOUND)
  if(GTest_FOUND AND NOT TARGET GTest::gmock)
    list(APPEND haulway_missing libgmock-dev)
  endif()
endif()
if(haulway_missing)
  list(JOIN haulway_missing " " haulway_missing)
  message(FATAL_ERROR
    "These are needed and were not found; the names are Debian's: "
    "${haulway_missing}\nOn Debian, scripts/setup installs them.")
endif()
