# cmake -D PROGRAM=haulway -D OUT=FOLDER -P share.cmake
#
# Fills FOLDER with what is installed in share/: manual pages, if there is a
# Python, and completions of shells.

cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${OUT})
function(complete shell file)
  get_filename_component(folder ${OUT}/${file} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  execute_process(COMMAND ${PROGRAM} completion ${shell}
    OUTPUT_FILE ${OUT}/${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
complete(bash bash-completion/completions/haulway)
complete(zsh zsh/site-functions/_haulway)
complete(fish fish/vendor_completions.d/haulway.fish)

find_program(python python3)
if(python)
  execute_process(
    COMMAND ${python} ${CMAKE_CURRENT_LIST_DIR}/../tools/make_man.py
            ${PROGRAM} ${OUT}/man/man1
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
else()
  message(STATUS "Not installed: manual pages, which python3 makes")
endif()
