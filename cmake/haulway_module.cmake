# haulway_module(NAME [USES module...] [HEADERS name...] [LINKS target...])
#
# Declares src/NAME as a module: every .cc file that is not a test becomes part
# of the library, every *_test.cc part of the test program NAME_test. USES lists
# the modules whose headers it may include, HEADERS its own files in
# include/haulway/, without ".h". tools/check_layers.py checks both.
function(haulway_module name)
  cmake_parse_arguments(ARG "" "" "USES;HEADERS;LINKS" ${ARGN})
  set(dir ${PROJECT_SOURCE_DIR}/src/${name})
  file(GLOB sources CONFIGURE_DEPENDS ${dir}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(NOT sources)
    return()
  endif()

  add_library(haulway_${name} STATIC ${sources})
  target_include_directories(haulway_${name}
    PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  set(uses)
  foreach(used ${ARG_USES})
    if(TARGET haulway_${used})
      list(APPEND uses haulway_${used})
    endif()
  endforeach()
  target_link_libraries(haulway_${name} PUBLIC ${uses} ${ARG_LINKS})
  set_property(GLOBAL APPEND PROPERTY HAULWAY_MODULES haulway_${name})

  if(BUILD_TESTING AND tests)
    add_executable(${name}_test ${tests})
    # Only the referenced parts of an archive are linked, so the archive may
    # contain suites for layers above the test's own. It is useful from io on.
    if(NOT name MATCHES "^(base|tensor|pickle|arena|device)$")
      target_link_libraries(${name}_test PRIVATE haulway_testing)
    endif()
    target_link_libraries(${name}_test
      PRIVATE haulway_${name} PkgConfig::libdeflate GTest::gmock
              GTest::gtest_main)
    target_compile_definitions(${name}_test PRIVATE
      HAULWAY_TESTDATA="testdata")
    haulway_test_flags(${name}_test)
    # Tests run in the project's root, so HAULWAY_TESTDATA can be relative. Then
    # the compiled files do not depend on the checkout's path, and the
    # compiler's cache works for other checkouts.
    add_test(NAME ${name} COMMAND ${name}_test
             WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    # Modules that map memory are tested again as on a kernel with pages of 64
    # KiB; not with sanitizers, whose library must be loaded first.
    if(name MATCHES "^(base|io|load|arena|publish)$"
       AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$"
       AND NOT HAULWAY_SANITIZE)
      add_test(NAME ${name}_large_pages COMMAND ${name}_test
               WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
      set_tests_properties(${name}_large_pages PROPERTIES
        ENVIRONMENT "LD_PRELOAD=$<TARGET_FILE:large_pages>")
      add_dependencies(${name}_test large_pages)
    endif()
  endif()
endfunction()

# haulway_test_flags(TARGET)
#
# Tests are compiled without optimisation, the tested code is not: with
# sanitizers, a file takes 8 s of processor time instead of 21 s with -O1.
# _FORTIFY_SOURCE would only cause warnings. Under an emulator, loops of tests
# take minutes without optimisation and seconds with -O1.
function(haulway_test_flags target)
  set(level -O0)
  if(CMAKE_CROSSCOMPILING)
    set(level -O1)
  endif()
  target_compile_options(${target} PRIVATE ${level} -U_FORTIFY_SOURCE)
endfunction()

# haulway_testing()
#
# The shared library of tests: suites, faults, files built in memory.
function(haulway_testing)
  file(GLOB suites CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/testing/*.cc)
  add_library(haulway_testing STATIC ${suites})
  target_include_directories(haulway_testing
    PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(haulway_testing PUBLIC GTest::gmock fmt::fmt
    PkgConfig::libdeflate)
  target_compile_definitions(haulway_testing PRIVATE
    HAULWAY_TESTDATA="testdata")
  haulway_test_flags(haulway_testing)
  # A test of a low layer links only the parts that use no higher one.
  set_target_properties(haulway_testing PROPERTIES UNITY_BUILD OFF)
  add_library(large_pages MODULE
    ${PROJECT_SOURCE_DIR}/src/testing/large_pages/large_pages.cc)
  set_target_properties(large_pages PROPERTIES CXX_VISIBILITY_PRESET default)
  target_link_libraries(large_pages PRIVATE ${CMAKE_DL_LIBS})
endfunction()

# The libraries that the modules need, all together.
set(HAULWAY_LIBRARIES fmt::fmt PkgConfig::libdeflate PkgConfig::libsodium
    PkgConfig::liburing PkgConfig::libxxhash PkgConfig::libzstd PkgConfig::re2 OpenSSL::SSL OpenSSL::Crypto simdjson::simdjson
    ZLIB::ZLIB ${CMAKE_DL_LIBS})

# haulway_pkg_config(name)
#
# Installs the pkg-config description of a library, from the variables
# HAULWAY_PC_NEEDS, HAULWAY_PC_LINK and HAULWAY_PC_COMPILE.
function(haulway_pkg_config name)
  set(HAULWAY_PC_NAME ${name})
  # Relative to the .pc file's folder, so that the installed tree can be moved.
  file(RELATIVE_PATH HAULWAY_PC_TO_PREFIX
    /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/haulway.pc.in ${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

# haulway_library()
#
# The library that users link, haulway::haulway: all modules in one archive or,
# with BUILD_SHARED_LIBS, one shared library. It is installed with the public
# headers, a CMake package and a pkg-config description.
function(haulway_library)
  get_property(modules GLOBAL PROPERTY HAULWAY_MODULES)
  set(objects)
  foreach(module ${modules})
    list(APPEND objects $<TARGET_OBJECTS:${module}>)
  endforeach()
  add_library(haulway ${objects})
  add_library(haulway::haulway ALIAS haulway)
  # By docs/stability.md, programs are recompiled for each MINOR version.
  set_target_properties(haulway PROPERTIES LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_compile_features(haulway PUBLIC cxx_std_20)
  target_include_directories(haulway PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(haulway PRIVATE ${HAULWAY_LIBRARIES}
    PUBLIC Threads::Threads)
  if(BUILD_SHARED_LIBS)
    set(map ${PROJECT_SOURCE_DIR}/cmake/haulway.map)
    target_link_options(haulway PRIVATE -Wl,--version-script=${map})
    set_target_properties(haulway PROPERTIES LINK_DEPENDS ${map})
  endif()

  include(CMakePackageConfigHelpers)
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/haulway)
  install(TARGETS haulway EXPORT haulwayTargets)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/haulway
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT haulwayTargets NAMESPACE haulway:: DESTINATION ${package_dir})
  configure_package_config_file(
    ${PROJECT_SOURCE_DIR}/cmake/haulwayConfig.cmake.in haulwayConfig.cmake
    INSTALL_DESTINATION ${package_dir})
  write_basic_package_version_file(haulwayConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
  # A program that links the archive must link its dependencies too. For the
  # shared library, neither these nor their descriptions are needed.
  set(HAULWAY_PC_NEEDS
    "Requires: fmt libdeflate libsodium liburing libxxhash libzstd re2 libssl")
  string(APPEND HAULWAY_PC_NEEDS " libcrypto simdjson zlib")
  if(BUILD_SHARED_LIBS)
    set(HAULWAY_PC_NEEDS "Libs.private: -lfmt -ldeflate -lsodium -luring -lxxhash")
    string(APPEND HAULWAY_PC_NEEDS " -lzstd -lssl -lcrypto -lsimdjson -lre2 -lz -ldl")
  endif()
  # The headers need C++20; without it, compilers say so in many ways.
  set(HAULWAY_PC_LINK " -pthread")
  set(HAULWAY_PC_COMPILE " -std=c++20")
  haulway_pkg_config(haulway)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/haulwayConfig.cmake
    ${CMAKE_CURRENT_BINARY_DIR}/haulwayConfigVersion.cmake
    DESTINATION ${package_dir})
endfunction()

# haulway_c_library()
#
# The same modules as a shared library that exports only the functions of
# haulway_c.h, each with the version that introduced it; src/c_abi/haulway_c.map
# lists them. This small interface stays stable, however the C++ of a release
# changes.
function(haulway_c_library)
  get_property(modules GLOBAL PROPERTY HAULWAY_MODULES)
  set(objects)
  foreach(module ${modules})
    list(APPEND objects $<TARGET_OBJECTS:${module}>)
  endforeach()
  set(map ${PROJECT_SOURCE_DIR}/src/c_abi/haulway_c.map)
  add_library(haulway_c SHARED ${objects})
  add_library(haulway::haulway_c ALIAS haulway_c)
  set_target_properties(haulway_c PROPERTIES LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION} SOVERSION 1 LINK_DEPENDS ${map})
  target_include_directories(haulway_c PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_options(haulway_c PRIVATE -Wl,--version-script=${map}
    -Wl,--gc-sections)
  target_link_libraries(haulway_c PRIVATE ${HAULWAY_LIBRARIES}
    Threads::Threads)
  install(TARGETS haulway_c EXPORT haulwayTargets)
  haulway_pkg_config(haulway_c)
endfunction()
