// A malloc of somebody else's, as jemalloc or tcmalloc would be preloaded where neither is installed: powers
// of two from anonymous mappings, one lock, nothing given back to the system.
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))

struct header {
  size_t usable;  // bytes from the pointer to the end
  uint32_t order;
  uint32_t offset;  // of the pointer from the block's start
};

static void* free_lists[48];
static char* fresh;
static size_t fresh_left;
static int lock;

static void take(void) {
  while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) __builtin_ia32_pause();
}
static void give(void) {
  __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
}

static struct header* header_of(void* pointer) {
  return (struct header*)pointer - 1;
}

static void* block(uint32_t order) {
  take();
  char* found = free_lists[order];
  if (found != NULL) {
    memcpy(&free_lists[order], found, sizeof(void*));
    give();
    return found;
  }
  const size_t size = (size_t)1 << order;
  if (size >= 1 << 20) {
    give();
    found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return found == MAP_FAILED ? NULL : found;
  }
  if (fresh_left < size) {
    char* more = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more == MAP_FAILED) {
      give();
      return NULL;
    }
    fresh = more;
    fresh_left = 4 << 20;
  }
  found = fresh;
  fresh += size;
  fresh_left -= size;
  give();
  return found;
}

static void* allocate(size_t alignment, size_t size) {
  if (alignment < 16) alignment = 16;
  if (size > (size_t)1 << 46 || alignment > 1 << 30) return errno = ENOMEM, NULL;
  const size_t wanted = size + alignment + sizeof(struct header);
  uint32_t order = 6;
  while (((size_t)1 << order) < wanted) ++order;
  char* start = block(order);
  if (start == NULL) return errno = ENOMEM, NULL;
  char* pointer =
      (char*)(((uintptr_t)start + sizeof(struct header) + alignment - 1) & ~(uintptr_t)(alignment - 1));
  struct header* header = header_of(pointer);
  header->usable = (size_t)(start + ((size_t)1 << order) - pointer);
  header->order = order;
  header->offset = (uint32_t)(pointer - start);
  return pointer;
}

EXPORT void* malloc(size_t size) {
  return allocate(16, size);
}

EXPORT void free(void* pointer) {
  if (pointer == NULL) return;
  struct header* header = header_of(pointer);
  char* start = (char*)pointer - header->offset;
  const uint32_t order = header->order;
  if (order >= 20) {
    const int saved = errno;
    munmap(start, (size_t)1 << order);
    errno = saved;
    return;
  }
  take();
  memcpy(start, &free_lists[order], sizeof(void*));
  free_lists[order] = start;
  give();
}

EXPORT void* calloc(size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) return errno = ENOMEM, NULL;
  void* pointer = allocate(16, bytes);
  return pointer == NULL ? NULL : memset(pointer, 0, bytes);
}

EXPORT void* realloc(void* pointer, size_t size) {
  if (pointer == NULL) return malloc(size);
  if (size == 0) return free(pointer), NULL;
  const size_t before = header_of(pointer)->usable;
  if (size <= before) return pointer;
  void* moved = malloc(size);
  if (moved == NULL) return NULL;
  memcpy(moved, pointer, before);
  free(pointer);
  return moved;
}

EXPORT int posix_memalign(void** result, size_t alignment, size_t size) {
  const int saved = errno;
  void* pointer = allocate(alignment, size);
  errno = saved;
  if (pointer == NULL) return ENOMEM;
  *result = pointer;
  return 0;
}

EXPORT void* aligned_alloc(size_t alignment, size_t size) {
  return allocate(alignment, size);
}
EXPORT void* memalign(size_t alignment, size_t size) {
  return allocate(alignment, size);
}
EXPORT void* valloc(size_t size) {
  return allocate(4096, size);
}
EXPORT void* pvalloc(size_t size) {
  return allocate(4096, (size + 4095) & ~(size_t)4095);
}
EXPORT size_t malloc_usable_size(void* pointer) {
  return pointer == NULL ? 0 : header_of(pointer)->usable;
}
EXPORT void cfree(void* pointer) {
  free(pointer);
}
