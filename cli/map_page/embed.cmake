# cmake -DFOLDER=... -DSCRIPTS=... -DOUT=... -P embed.cmake
#
# Makes a page from page.html, page.css and the scripts, which are joined in the
# given order, and a C++ file from the page. The content security policy allows
# style and script only by their hashes, so nothing else that gets into the page
# can run.

# hash(TEXT VARIABLE): "sha256-..." in base 64, as in a content security policy.
function(hash text variable)
  string(SHA256 hex "${text}")
  set(alphabet
      ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  set(base64 "")
  foreach(at RANGE 0 60 6)  # Three bytes, four letters.
    string(SUBSTRING "${hex}00" ${at} 6 three)
    foreach(shift 18 12 6 0)
      math(EXPR index "(0x${three} >> ${shift}) & 63")
      string(SUBSTRING "${alphabet}" ${index} 1 letter)
      string(APPEND base64 ${letter})
    endforeach()
  endforeach()
  # 32 bytes end with two bytes of an incomplete group.
  string(SUBSTRING ${base64} 0 43 base64)
  set(${variable} "sha256-${base64}=" PARENT_SCOPE)
endfunction()

file(READ ${FOLDER}/page.html page)
file(READ ${FOLDER}/page.css style)
set(script "")
foreach(name IN LISTS SCRIPTS)
  file(READ ${FOLDER}/${name} part)
  string(APPEND script "${part}\n")
endforeach()
hash("${style}" style_hash)
hash("${script}" script_hash)
string(REPLACE "@STYLE_HASH@" "${style_hash}" page "${page}")
string(REPLACE "@SCRIPT_HASH@" "${script_hash}" page "${page}")
string(REPLACE "@STYLE@" "${style}" page "${page}")
string(REPLACE "@SCRIPT@" "${script}" page "${page}")
string(FIND "${page}" "@DATA@" middle)
string(SUBSTRING "${page}" 0 ${middle} head)
math(EXPR middle "${middle} + 6")
string(SUBSTRING "${page}" ${middle} -1 tail)
file(WRITE ${OUT} "// Made of the files in cli/map_page by embed.cmake.

#include \"map_page.h\"

namespace haulway::cli {
const std::string_view kMapPageHead = R\"PAGE(${head})PAGE\";
const std::string_view kMapPageTail = R\"PAGE(${tail})PAGE\";
}  // namespace haulway::cli
")
