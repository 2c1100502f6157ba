/* Memory for torch's CPU tensors, and so for outputs and workspaces, that ends at a page without access.
 *
 * To be preloaded (tests/test_guard.py). Every block of torch's CPU allocator is a mapping of its own, between two
 * pages without access, and filled with 0xFF: NaN as a floating-point number, -1 as an integer. It lies at the far end,
 * so that the first access beyond its last whole line of 64 bytes ends the process; what is left of that line, and what
 * lies before the block, must still hold 0xFF when the block is freed. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { page = 4096, slots = 1 << 16, line = 64, poison = 0xFF };

extern void __libc_free(void*);
extern void* __libc_memalign(size_t, size_t);

struct block {
  unsigned char *data, *base;
  size_t size, total;
};
static struct block table[slots];
static unsigned char gone; /* a slot that was freed, and is still passed on the way to others */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t slot_of(const void* data) { return ((uintptr_t)data / line * 2654435761u) % slots; }

int posix_memalign(void** out, size_t alignment, size_t size) {
  if ((alignment != line && alignment != page) || size == 0) {
    void* data = __libc_memalign(alignment, size);
    if (data == NULL) return ENOMEM;
    *out = data;
    return 0;
  }
  const size_t body = (size + alignment - 1) / alignment * alignment, inner = (body + page - 1) / page * page;
  const size_t total = inner + 2 * page;
  unsigned char* base = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return ENOMEM;
  memset(base + page, poison, inner);
  mprotect(base, page, PROT_NONE);
  mprotect(base + page + inner, page, PROT_NONE);
  unsigned char* data = base + page + inner - body;
  pthread_mutex_lock(&lock);
  size_t i = slot_of(data), tries = 0;
  while (table[i].data != NULL && table[i].data != &gone && tries++ < slots) i = (i + 1) % slots;
  table[i] = (struct block){data, base, size, total};
  pthread_mutex_unlock(&lock);
  *out = data;
  return tries <= slots ? 0 : ENOMEM;
}

static void expect_poison(const unsigned char* from, const unsigned char* to, const char* where, size_t size) {
  for (; from < to; ++from) {
    if (*from == poison) continue;
    fprintf(stderr, "guard: a byte %s a block of %zu bytes was written\n", where, size);
    abort();
  }
}

void free(void* data) {
  if (data == NULL) return;
  struct block found = {NULL, NULL, 0, 0};
  if ((uintptr_t)data % line == 0) {
    pthread_mutex_lock(&lock);
    size_t i = slot_of(data);
    for (size_t tries = 0; table[i].data != NULL && tries < slots; ++tries, i = (i + 1) % slots) {
      if (table[i].data != data) continue;
      found = table[i];
      table[i].data = table[(i + 1) % slots].data == NULL ? NULL : &gone;
      break;
    }
    pthread_mutex_unlock(&lock);
  }
  if (found.data == NULL) {
    __libc_free(data);
    return;
  }
  expect_poison(found.base + page, found.data, "before", found.size);
  expect_poison(found.data + found.size, found.base + found.total - page, "behind", found.size);
  munmap(found.base, found.total);
}
