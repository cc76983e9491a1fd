#!/usr/bin/env python3
"""Fails if a C++ file uses a name of the standard library or of fmt whose
header neither it nor a header of ours includes.

What one standard header includes of another differs from compiler to compiler,
so a file that relies on it compiles with some only. TABLE lists the names; a
name of std:: that it lacks is a fault, too.
"""

import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("include", "src", "cli", "python", "examples", "fuzz", "bench")

# Headers, of which one is enough, and their names: of std:: unless they have
# another prefix, or begin with `::`. `*` stands for any letters. Names of "any"
# come with the type that they are used with.
TABLE = """
algorithm: adjacent_find all_of any_of binary_search clamp copy copy_if copy_n
 count count_if equal equal_range fill fill_n find find_if find_if_not
 includes is_sorted lexicographical_compare lower_bound max max_element merge min
 min_element minmax mismatch move_backward next_permutation none_of nth_element
 partition partition_point remove_if replace replace_if reverse rotate search
 set_difference set_intersection shuffle sort stable_sort transform unique
 upper_bound ranges::*
array: array to_array
atomic: atomic atomic_bool atomic_ref atomic_signal_fence atomic_thread_fence
 memory_order_*
bit: bit_cast bit_ceil bit_floor bit_width byteswap countl_zero countr_zero
 endian has_single_bit popcount rotl rotr
cassert: ::assert
cctype: isalnum isalpha isdigit isspace tolower toupper
cerrno: ::errno
charconv: chars_format from_chars to_chars
chrono: chrono::* chrono_literals
clocale: setlocale
cmath: abs ceil copysign floor fmod hypot isfinite isinf isnan ldexp log2 lround
 nan nextafter pow round signbit sqrt trunc
complex: complex
concepts: convertible_to derived_from floating_point integral invocable same_as
 signed_integral unsigned_integral
condition_variable: condition_variable
csignal: raise sig_atomic_t signal
cstdarg: ::va_list ::va_start
cstddef: byte max_align_t nullptr_t ptrdiff_t to_integer ::size_t ::ptrdiff_t
 ::offsetof
cstdint: ::uint8_t ::uint16_t ::uint32_t ::uint64_t ::int8_t ::int16_t ::int32_t
 ::int64_t ::uintptr_t ::intptr_t ::UINT*_MAX ::INT*_MAX ::INT*_MIN uint*_t int*_t
cstdio: FILE fclose ferror fflush fgets fopen fprintf fputs fread fscanf fwrite
 getc perror printf putchar puts rename setvbuf snprintf sscanf ::stderr ::stdout
cstdlib: abort aligned_alloc atexit atoi atol exit free getenv malloc strtod
 strtol strtoul strtoull _Exit quick_exit
cstring: memchr memcmp memcpy memmove memset strchr strcmp strcspn strerror strlen
 strncmp strrchr strstr
ctime: time_t tm time gmtime mktime
deque: deque
exception: current_exception exception exception_ptr rethrow_exception
 set_terminate terminate uncaught_exceptions
filesystem: filesystem::* filesystem
fstream: fstream ifstream ofstream
functional: bind bind_front equal_to function greater greater_equal hash invoke
 less less_equal multiplies not_fn plus reference_wrapper
functional or utility: identity
functional or memory: owner_less
future: async future promise
initializer_list: initializer_list
iosfwd or istream or ostream or iostream or sstream or fstream: istream ostream
iostream: cerr cin cout
ios or istream or ostream or iostream or sstream or fstream: ios ios_base streamoff
 streamsize
iterator or array or vector or span or string or string_view: begin end size data
 empty
iterator: back_inserter distance inserter istreambuf_iterator make_move_iterator
 move_iterator next prev random_access_iterator_tag forward_iterator_tag
 input_iterator_tag
limits: numeric_limits
list: list
map: map multimap
memory: addressof allocator const_pointer_cast default_delete
 dynamic_pointer_cast enable_shared_from_this make_shared make_shared_for_overwrite
 make_unique make_unique_for_overwrite shared_ptr static_pointer_cast
 uninitialized_copy_n uninitialized_fill_n unique_ptr weak_ptr construct_at
 destroy_at
mutex: call_once defer_lock lock_guard mutex once_flag recursive_mutex
 scoped_lock try_to_lock unique_lock
new: align_val_t bad_alloc launder nothrow nothrow_t
numeric: accumulate gcd inner_product iota lcm partial_sum reduce
optional: nullopt optional
queue: priority_queue queue
random: minstd_rand mt19937 mt19937_64 random_device uniform_int_distribution
 normal_distribution uniform_real_distribution
ranges: views::* views
set: multiset set
shared_mutex: shared_lock shared_mutex
span: as_bytes as_writable_bytes dynamic_extent span
sstream: istringstream ostringstream stringstream
stack: stack
stdexcept: invalid_argument length_error logic_error out_of_range overflow_error
 runtime_error
stop_token: stop_source stop_token
streambuf: streambuf
string: char_traits getline stod stoi stol stoll stoul stoull string to_string
 string_literals
string_view: string_view string_view_literals
system_error: errc error_code generic_category make_error_code system_category
 system_error
thread: jthread thread this_thread::*
tuple: ignore make_tuple tie tuple apply forward_as_tuple
tuple or utility or array or variant or map: get tuple_size tuple_size_v
 tuple_element_t
type_traits: add_const_t conditional_t decay_t enable_if_t false_type
 integral_constant invoke_result_t is_arithmetic_v is_base_of_v is_const_v
 is_constant_evaluated is_convertible_v is_enum_v is_floating_point_v is_integral_v
 is_invocable_v is_nothrow_move_constructible_v is_same_v is_signed_v
 is_trivially_copyable_v is_unsigned_v is_void_v is_default_constructible_v
 is_copy_constructible_v is_nothrow_move_assignable_v is_trivially_destructible_v
 is_pointer_v is_reference_v is_member_object_pointer_v make_signed_t make_unsigned_t
 remove_const_t remove_cv_t remove_cvref_t remove_pointer_t remove_reference_t
 true_type underlying_type_t void_t is_standard_layout_v
typeinfo: type_info
unordered_map: unordered_map unordered_multimap
unordered_set: unordered_set
utility: as_const cmp_equal cmp_greater cmp_less cmp_less_equal declval exchange
 forward in_place in_place_t in_place_type in_place_index in_range index_sequence
 index_sequence_for integer_sequence make_index_sequence make_pair
 pair piecewise_construct swap unreachable
utility or algorithm: move
valarray: valarray
variant: get_if holds_alternative monostate variant visit
vector: vector
format: format
source_location: source_location
coroutine: coroutine_handle
compare: partial_ordering strong_ordering weak_ordering
any: _ erase erase_if literals placeholders::* remove
fmt/ranges.h: fmt::join
fmt/format.h or fmt/ranges.h: fmt::*
"""

LITERALS = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<d>[^(\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.DOTALL)
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
NAME = re.compile(
    r"(?<![\w:.>])(?:::)?((?:std|fmt)::(?:ranges::|chrono::|filesystem::|views::"
    r"|placeholders::|this_thread::)?\w+|\w+)")


def table():
    """Returns names of std:: and others, each with the headers of which one is
    enough, and the patterns of names that contain a star."""
    exact, patterns = {}, []
    for row in re.sub(r"\n ", " ", TABLE.strip()).splitlines():
        headers, _, names = row.partition(": ")
        headers = frozenset(headers.split(" or "))
        for name in names.split():
            full = name if "fmt::" in name else (
                name[2:] if name.startswith("::") else f"std::{name}")
            if "*" in full:
                patterns.append((re.compile(
                    re.escape(full).replace(r"\*", r"\w*") + "$"), headers))
            else:
                exact[full] = headers
    return exact, patterns


EXACT, PATTERNS = table()


@functools.cache
def headers_of(name):
    """Returns the headers of a name, or None if it is none of the library's."""
    if name in EXACT:
        return EXACT[name]
    for pattern, headers in PATTERNS:
        if pattern.match(name):
            return headers
    return frozenset() if name.startswith("std::") else None


@functools.cache
def ours(path, include):
    """Returns the file of ours that a file includes by this name, or None."""
    for folder in (ROOT / "include", ROOT / "src", ROOT / "python", path.parent):
        if (folder / include).is_file():
            return folder / include
    return None


@functools.cache
def text_of(path):
    return path.read_text()


@functools.cache
def reached(path):
    """Returns the other people's headers that a file includes, itself or by
    headers of ours."""
    found, seen, todo = set(), {path}, [path]
    while todo:
        one = todo.pop()
        for include in INCLUDE.findall(text_of(one)):
            other = ours(one, include)
            if other is None:
                found.add(include)
            elif other not in seen:
                seen.add(other)
                todo.append(other)
    return found


def faults(path):
    """Yields a line for each header that a file lacks, which need not be
    included by the file itself: a header of ours may bring it."""
    code = LITERALS.sub(lambda found: "\n" * found[0].count("\n") or " ",
                        re.sub(r"^\s*#\s*include[^\n]*", "", text_of(path),
                               flags=re.MULTILINE))
    have = reached(path)
    # <stdint.h> is <cstdint> for this purpose.
    have = have | {"any"} | {f"c{one[:-2]}" for one in have
                             if one.endswith(".h")}
    told = set()
    for number, line in enumerate(code.splitlines(), 1):
        for name in NAME.findall(line):
            headers = headers_of(name)
            if headers is None or headers & have or headers in told:
                continue
            told.add(headers)  # One fault a header and file.
            place = f"{path.relative_to(ROOT).as_posix()}:{number}"
            if headers:
                yield f"{place}: {name} is of <{'> or <'.join(sorted(headers))}>"
            else:
                yield f"{place}: {name} is not in tools/check_includes.py"


def main():
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cc"):
                found += faults(path)
    for fault in found:
        print(fault)
    print(f"includes: {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
