/* The C ABI: checkpoints of every format for C, and for all that calls C.
 *
 * A call that can fail returns a haulway_code, 0 if it did not fail;
 * haulway_last_error() then says in words what was wrong, with the place and
 * what was expected. What a call fills through a pointer is unspecified after a
 * failure.
 *
 * Units: sizes and offsets are bytes. Elements are dense, in row-major order
 * and in this machine's byte order.
 * Threads: a haulway_file may be used from any number of threads at once.
 * Lifetime: text and shapes that a haulway_tensor points to live as long as
 * its file is open.
 *
 * Every function is of the version HAULWAY_C_1 of libhaulway_c.so. What is
 * there stays as it is; what comes later gets a version of its own. */

#ifndef HAULWAY_HAULWAY_C_H_
#define HAULWAY_HAULWAY_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HAULWAY_C_EXPORT __attribute__((visibility("default")))

/* As docs/errors.md explains them. */
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
  HAULWAY_INTERNAL = 15
} haulway_code;

/* An open checkpoint. */
typedef struct haulway_file haulway_file;

typedef struct haulway_tensor {
  const char* name;
  const char* dtype; /* "F32", "BF16", "I64", ... */
  size_t rank;
  const int64_t* shape; /* Of `rank` sizes. */
  uint64_t bytes;       /* Of its elements. */
} haulway_tensor;

/* The elements begin, begin + step, ... before end, of one dimension. */
typedef struct haulway_range {
  int64_t begin;
  int64_t end;
  int64_t step; /* At least 1. */
} haulway_range;

/* A tensor to bring into memory, and where. */
typedef struct haulway_destination {
  size_t tensor;              /* Its number. */
  const haulway_range* slice; /* One a dimension; NULL: all of it. */
  void* memory;
  uint64_t bytes; /* Exactly what it comes to. */
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

/* Why the last call of this thread failed; "" if none did. Good until the
 * thread's next call. */
HAULWAY_C_EXPORT const char* haulway_last_error(void);

/* Opens what `name` means: a file of any format, a folder, an index of shards,
 * a URL. Reads the index, and no tensor. */
HAULWAY_C_EXPORT haulway_code haulway_open(const char* name,
                                           haulway_file** file);
/* NULL is nothing to close. */
HAULWAY_C_EXPORT void haulway_close(haulway_file* file);

/* "torch", "safetensors", ...; "" of NULL. */
HAULWAY_C_EXPORT const char* haulway_format(const haulway_file* file);
/* How many tensors there are, 0 of NULL; they are numbered from 0. */
HAULWAY_C_EXPORT size_t haulway_count(const haulway_file* file);
/* HAULWAY_NOT_FOUND past the last one. */
HAULWAY_C_EXPORT haulway_code haulway_describe(const haulway_file* file,
                                               size_t number,
                                               haulway_tensor* tensor);
/* The number of the tensor of that name. */
HAULWAY_C_EXPORT haulway_code haulway_find(haulway_file* file, const char* name,
                                           size_t* number);

/* Reads all of a tensor. `bytes` must be what it has. */
HAULWAY_C_EXPORT haulway_code haulway_read(const haulway_file* file,
                                           size_t number, void* memory,
                                           uint64_t bytes);
/* Reads a part of it: `slice` has a range for each dimension. */
HAULWAY_C_EXPORT haulway_code haulway_read_slice(const haulway_file* file,
                                                 size_t number,
                                                 const haulway_range* slice,
                                                 void* memory, uint64_t bytes);
/* Reads many, in parallel, with as few reads as they need. `threads` is 0 for
 * as many as this process may use; checksums are checked if `verify` is not
 * 0. */
HAULWAY_C_EXPORT haulway_code haulway_load_into(
    const haulway_file* file, const haulway_destination* destinations,
    size_t count, int threads, int verify);

/* Checks structure and every checksum of a file, which need not open.
 * HAULWAY_CORRUPT if there is something wrong, of which haulway_last_error()
 * tells the first. */
HAULWAY_C_EXPORT haulway_code haulway_verify(const char* name);

/* Writes a file, which appears when all of it is there. `format` is NULL for
 * what the name ends as. */
HAULWAY_C_EXPORT haulway_code haulway_save(const char* name, const char* format,
                                           const haulway_source* tensors,
                                           size_t count);

#ifdef __cplusplus
}
#endif

#endif /* HAULWAY_HAULWAY_C_H_ */
