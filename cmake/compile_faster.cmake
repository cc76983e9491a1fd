# Most of a compiler's time goes to the headers that each source includes. So the
# sources of a module are compiled several at once, and objects are shared by
# the build trees of a checkout through the compiler's cache.

if(HAULWAY_UNITY)
  set(CMAKE_UNITY_BUILD ON)
  # More take no less time, and leave processors idle.
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 10)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # It warns of types in an unnamed namespace of a file that is included.
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths in the checkout are hashed relative to the build tree.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
endif()
