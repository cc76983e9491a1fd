# What the compiler and the linker can do against a mistake of ours that a
# hostile file finds. python/tests/project/test_hardening.py reads the binaries for it.
#
# All of it together takes 1 % of opening a checkpoint of 100,000 tensors.
# _FORTIFY_SOURCE is left out where sanitizers replace the functions that it
# checks, and where without optimisation it would only warn.
include(CheckCXXCompilerFlag)

add_compile_options(-fstack-protector-strong)
foreach(flag stack-clash-protection cf-protection=full)
  string(MAKE_C_IDENTIFIER ${flag} name)
  check_cxx_compiler_flag(-f${flag} HAULWAY_HAS_${name})
  if(HAULWAY_HAS_${name})
    add_compile_options(-f${flag})
  endif()
endforeach()
if(NOT HAULWAY_SANITIZE)
  add_compile_options(
    "$<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3>")
endif()
add_link_options(-Wl,-z,relro,-z,now,-z,noexecstack)
