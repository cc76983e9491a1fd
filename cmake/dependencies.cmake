# The libraries to link, from the distribution's packages.
#
# Missing ones are listed together, by their names in the distributions: packages.txt.
# Without a compiler no library can be found, so all are listed.
if(CMAKE_CXX_COMPILER)
  find_package(Threads REQUIRED)
  find_package(PkgConfig QUIET)
  if(PKG_CONFIG_FOUND)
    foreach(library libdeflate libsodium liburing libxxhash libzstd re2)
      pkg_check_modules(${library} QUIET IMPORTED_TARGET ${library})
    endforeach()
  endif()
  find_package(ZLIB QUIET)
  find_package(fmt QUIET)
  find_package(simdjson QUIET)
  find_package(OpenSSL QUIET COMPONENTS Crypto SSL)
  find_package(CURL QUIET)
  if(HAULWAY_BUILD_CLI OR HAULWAY_BUILD_PYTHON)
    find_package(CLI11 QUIET)
  endif()
  if(HAULWAY_BUILD_PYTHON)
    find_package(Python 3.10 QUIET COMPONENTS Interpreter Development.Module)
  endif()
  if(BUILD_TESTING)
    find_package(GTest QUIET)
    if(TARGET GTest::gmock)
      set(GMOCK_FOUND TRUE)
    endif()
  endif()
endif()

set(haulway_needed build)
if(HAULWAY_BUILD_PYTHON)
  list(APPEND haulway_needed python)
endif()
if(BUILD_TESTING)
  list(APPEND haulway_needed tests)
endif()
if(NOT HAULWAY_BUILD_CLI AND NOT HAULWAY_BUILD_PYTHON)
  set(CLI11_FOUND TRUE)
endif()
set(c++ ${CMAKE_CXX_COMPILER})
set(pkg-config ${PKG_CONFIG_FOUND})
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  ${CMAKE_CURRENT_LIST_DIR}/packages.txt)
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/packages.txt haulway_rows REGEX "^[^#]")
foreach(row ${haulway_rows})
  string(REGEX REPLACE " +" ";" row "${row}")
  list(POP_FRONT row for found)
  if(for IN_LIST haulway_needed AND found MATCHES "_FOUND$|^c\\+\\+$|^pkg-config$"
     AND NOT (CMAKE_CXX_COMPILER AND ${found}))
    foreach(system debian fedora arch alpine homebrew)
      list(POP_FRONT row package)
      list(APPEND haulway_missing_${system} ${package})
    endforeach()
  endif()
endforeach()

if(haulway_missing_debian)
  foreach(system debian fedora arch alpine homebrew)
    list(REMOVE_DUPLICATES haulway_missing_${system})
    list(JOIN haulway_missing_${system} " " ${system})
  endforeach()
  # CMake does not wrap lines that begin with a space.
  message(FATAL_ERROR
    "Haulway needs libraries that were not found. Install them with one of\n"
    "  Debian, Ubuntu:  apt-get install ${debian}\n"
    "  Fedora, RHEL:    dnf install ${fedora}\n"
    "  Arch:            pacman -S ${arch}\n"
    "  Alpine:          apk add ${alpine}\n"
    "  Homebrew:        brew install ${homebrew}\n"
    "On Debian, scripts/setup of the repository does that.")
endif()

# haulway_link_archives(TARGET ARCHIVE...): links the archives instead of
# TARGET's shared libraries.
function(haulway_link_archives target)
  list(TRANSFORM ARGN PREPEND ${HAULWAY_STATIC_LIBRARIES}/)
  foreach(archive ${ARGN})
    if(NOT EXISTS ${archive})
      message(FATAL_ERROR "there is no ${archive}")
    endif()
  endforeach()
  get_target_property(alias ${target} ALIASED_TARGET)
  if(alias)
    set(target ${alias})
  endif()
  list(POP_FRONT ARGN first)
  # The library's package may define any kind of target.
  get_target_property(type ${target} TYPE)
  if(NOT type STREQUAL INTERFACE_LIBRARY)
    foreach(property IMPORTED_LOCATION IMPORTED_LOCATION_RELEASE
                     IMPORTED_LOCATION_NONE)
      set_target_properties(${target} PROPERTIES ${property} ${first})
    endforeach()
    set(first)
  endif()
  set_target_properties(${target} PROPERTIES
    INTERFACE_LINK_LIBRARIES "${first};${ARGN}")
endfunction()

if(HAULWAY_STATIC_LIBRARIES)
  haulway_link_archives(fmt::fmt libfmt.a)
  haulway_link_archives(simdjson::simdjson libsimdjson.a)
  haulway_link_archives(PkgConfig::libdeflate libdeflate.a)
  haulway_link_archives(PkgConfig::libsodium libsodium.a)
  haulway_link_archives(PkgConfig::liburing liburing.a)
  haulway_link_archives(PkgConfig::libxxhash libxxhash.a)
  haulway_link_archives(PkgConfig::libzstd libzstd.a)
  haulway_link_archives(PkgConfig::re2 libre2.a)
  haulway_link_archives(ZLIB::ZLIB libz.a)
  haulway_link_archives(OpenSSL::Crypto libcrypto.a)
  haulway_link_archives(OpenSSL::SSL libssl.a libcrypto.a)
  haulway_link_archives(CURL::libcurl libcurl.a libssl.a libcrypto.a)
endif()
