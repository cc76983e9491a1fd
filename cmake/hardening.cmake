# Options of the compiler and the linker that make memory errors harder to
# exploit by a hostile file. python/tests/project/test_hardening.py checks the
# binaries for them.
#
# Together they cost 1 % when opening a checkpoint of 100,000 tensors.
# _FORTIFY_SOURCE is omitted if sanitizers replace the functions that it checks,
# and without optimisation, where it only causes warnings.
include(CheckCXXCompilerFlag)

add_compile_options(-fstack-protector-strong)
# The last two are of x86-64 and of aarch64: returns and jumps lead only where
# the program meant them to. Clang only warns of a flag of another processor,
# hence -Werror.
set(CMAKE_REQUIRED_FLAGS -Werror)
foreach(flag -fstack-clash-protection -fcf-protection=full
             -mbranch-protection=standard)
  string(MAKE_C_IDENTIFIER HAULWAY_HAS_${flag} name)
  check_cxx_compiler_flag(${flag} ${name})
  if(${name})
    add_compile_options(${flag})
  endif()
endforeach()
unset(CMAKE_REQUIRED_FLAGS)
if(NOT HAULWAY_SANITIZE)
  add_compile_options(
    "$<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3>")
endif()
add_link_options(-Wl,-z,relro,-z,now,-z,noexecstack)
