/* The C ABI: checkpoints of every format for C, and for every language that can
 * call C.
 *
 * A function that can fail returns a haulway_code: 0 if it succeeded. After a
 * failure haulway_last_error() describes what was wrong, where, and what was
 * expected; anything that the function fills through a pointer is then
 * unspecified.
 *
 * Units: sizes and offsets are bytes. Elements are dense, in row-major order
 * and in this machine's byte order; those of a conjugated or negated tensor of
 * PyTorch are the numbers that PyTorch shows.
 * Threads: a haulway_file may be used from any number of threads at once. Close
 * it when no other thread uses it any more.
 * Lifetime: the strings and shapes that a haulway_tensor points to are valid
 * while its file is open. Every other pointer that a function takes is used
 * only until the function returns.
 * Names: text in UTF-8, unless the file has other bytes. A name with a NUL byte
 * in it is given with its special characters escaped: "a\x00b".
 *
 * Every function has the symbol version HAULWAY_C_1 of libhaulway_c.so.
 * Existing functions never change; functions added later get a new version. */

#ifndef HAULWAY_HAULWAY_C_H_
#define HAULWAY_HAULWAY_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HAULWAY_C_EXPORT __attribute__((visibility("default")))

/* docs/errors.md explains the codes. */
typedef enum haulway_code {
  HAULWAY_OK = 0,
  HAULWAY_INVALID_ARGUMENT = 1,
  HAULWAY_NOT_FOUND = 2,
  HAULWAY_PERMISSION_DENIED = 3,
  HAULWAY_UNAVAILABLE = 4,
  HAULWAY_TIMEOUT = 5,
  HAULWAY_IO_ERROR = 6,
  HAULWAY_TRUNCATED = 7,
  HAULWAY_CORRUPT = 8,
  HAULWAY_MISMATCH = 9,
  HAULWAY_UNSAFE = 10,
  HAULWAY_LIMIT = 11,
  HAULWAY_AUTH = 12,
  HAULWAY_UNSUPPORTED = 13,
  HAULWAY_CANCELLED = 14,
  HAULWAY_INTERNAL = 15,
  HAULWAY_SIGNATURE = 16
} haulway_code;

/* An open checkpoint. */
typedef struct haulway_file haulway_file;

typedef struct haulway_tensor {
  const char* name;
  const char* dtype; /* "F32", "BF16", "I64", ... */
  size_t rank;
  /* `rank` sizes. The last size of a quantized GGUF tensor ("Q4_K") counts the
   * bytes of its blocks. */
  const int64_t* shape;
  uint64_t bytes; /* Size of its elements. */
} haulway_tensor;

/* The elements begin, begin + step, ... of one dimension, up to but not
 * including `end`. */
typedef struct haulway_range {
  int64_t begin;
  int64_t end;
  int64_t step; /* At least 1. */
} haulway_range;

/* A tensor to load, and the memory to load it into. */
typedef struct haulway_destination {
  size_t tensor;              /* The number of the tensor. */
  const haulway_range* slice; /* A range for each dimension; NULL: all. */
  void* memory;
  uint64_t bytes; /* The exact size of the result. */
} haulway_destination;

/* A tensor to write. */
typedef struct haulway_source {
  const char* name;
  const char* dtype;
  size_t rank;
  const int64_t* shape;
  const void* memory;
  uint64_t bytes;
} haulway_source;

/* Returns why this thread's last call of a function that returns a haulway_code
 * failed; "" if it did not fail. The string is valid until the next such call
 * of the thread. */
HAULWAY_C_EXPORT const char* haulway_last_error(void);

/* Opens the checkpoint `name`: a file of any format, a folder, an index of
 * shards, or a URL. Reads the index but no tensor. Sets `*file` to NULL if it
 * fails. */
HAULWAY_C_EXPORT haulway_code haulway_open(const char* name,
                                           haulway_file** file);
/* Closes a file. No effect if `file` is NULL. */
HAULWAY_C_EXPORT void haulway_close(haulway_file* file);

/* Returns the format: "torch", "safetensors", ...; "" if `file` is NULL. */
HAULWAY_C_EXPORT const char* haulway_format(const haulway_file* file);
/* Returns the number of tensors, 0 if `file` is NULL. Tensors are numbered from
 * 0. */
HAULWAY_C_EXPORT size_t haulway_count(const haulway_file* file);
/* Describes tensor `number`. Fails with HAULWAY_NOT_FOUND if there is no such
 * tensor. */
HAULWAY_C_EXPORT haulway_code haulway_describe(const haulway_file* file,
                                               size_t number,
                                               haulway_tensor* tensor);
/* Finds the number of the tensor `name`, as haulway_describe() gives it. Fails
 * with HAULWAY_NOT_FOUND if there is no such tensor. */
HAULWAY_C_EXPORT haulway_code haulway_find(haulway_file* file, const char* name,
                                           size_t* number);

/* Reads a whole tensor. `bytes` must be the tensor's size. */
HAULWAY_C_EXPORT haulway_code haulway_read(const haulway_file* file,
                                           size_t number, void* memory,
                                           uint64_t bytes);
/* Reads part of a tensor. `slice` has a range for each dimension. */
HAULWAY_C_EXPORT haulway_code haulway_read_slice(const haulway_file* file,
                                                 size_t number,
                                                 const haulway_range* slice,
                                                 void* memory, uint64_t bytes);
/* Reads many tensors in parallel, with as few reads as possible, into memory
 * that does not overlap. If `threads` is 0, chooses the number of threads. If
 * `verify` is not 0, checks checksums. */
HAULWAY_C_EXPORT haulway_code haulway_load_into(
    const haulway_file* file, const haulway_destination* destinations,
    size_t count, int threads, int verify);

/* Checks the structure and every checksum of a file, which may be damaged.
 * Fails with HAULWAY_CORRUPT if anything is wrong; haulway_last_error()
 * describes the first fault. */
HAULWAY_C_EXPORT haulway_code haulway_verify(const char* name);

/* Writes a file, which becomes visible when it is complete. If `format` is
 * NULL, the ending of `name` decides the format. */
HAULWAY_C_EXPORT haulway_code haulway_save(const char* name, const char* format,
                                           const haulway_source* tensors,
                                           size_t count);

#ifdef __cplusplus
}
#endif

#endif /* HAULWAY_HAULWAY_C_H_ */
