/* Lists the tensors of a checkpoint, and copies the first one that is not empty
 * to another file: summary FILE OUT */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "haulway/haulway_c.h"

static int fail(void) {
  fprintf(stderr, "%s\n", haulway_last_error());
  return 1;
}

int main(int argc, char** argv) {
  haulway_file* file = NULL;
  if (argc != 3) return 2;
  if (haulway_verify(argv[1]) != HAULWAY_OK) return fail();
  if (haulway_open(argv[1], &file) != HAULWAY_OK) return fail();
  haulway_tensor first = {0};
  size_t at = 0;
  for (size_t i = haulway_count(file); i-- > 0;) {
    haulway_tensor tensor;
    if (haulway_describe(file, i, &tensor) != HAULWAY_OK) return fail();
    printf("%s %s rank %zu, %" PRIu64 " bytes\n", tensor.name, tensor.dtype,
           tensor.rank, tensor.bytes);
    if (tensor.bytes != 0) first = tensor;
  }
  if (first.name == NULL) return 1;
  if (haulway_find(file, first.name, &at) != HAULWAY_OK) return fail();
  void* memory = malloc(first.bytes);
  if (memory == NULL) return 1;
  if (haulway_read(file, at, memory, first.bytes) != HAULWAY_OK) return fail();
  const haulway_source copy = {first.name,  first.dtype, first.rank,
                               first.shape, memory,      first.bytes};
  if (haulway_save(argv[2], NULL, &copy, 1) != HAULWAY_OK) return fail();
  free(memory);
  haulway_close(file);
  return 0;
}
