#include "recorder/memory/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace gpumemtrace::recorder {
namespace {

constexpr size_t kPage = 4096;
std::atomic<size_t> g_mapped{0};
std::atomic<size_t> g_shared{0};

size_t RoundUp(size_t bytes) {
  return (bytes + kPage - 1) & ~(kPage - 1);
}

void* Remap(void* pages, size_t old_bytes, size_t new_bytes) {
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer hears of mmap but not of mremap, and would blame what lay at the new address before: the
  // stack of a thread that is gone, say.
  void* moved = mmap(nullptr, new_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (moved == MAP_FAILED) return moved;
  memcpy(moved, pages, std::min(old_bytes, new_bytes));
  munmap(pages, old_bytes);
  return moved;
#else
  return mremap(pages, old_bytes, new_bytes, MREMAP_MAYMOVE);
#endif
}

}  // namespace

void* MapPages(size_t bytes) {
  if (bytes == 0 || bytes > SIZE_MAX / 2) return nullptr;
  bytes = RoundUp(bytes);
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  g_mapped.fetch_add(bytes, std::memory_order_relaxed);
  return pages;
}

void* RemapPages(void* pages, size_t old_bytes, size_t new_bytes) {
  if (new_bytes == 0 || new_bytes > SIZE_MAX / 2) return nullptr;
  old_bytes = RoundUp(old_bytes);
  new_bytes = RoundUp(new_bytes);
  void* moved = Remap(pages, old_bytes, new_bytes);
  if (moved == MAP_FAILED) return nullptr;
  g_mapped.fetch_add(new_bytes - old_bytes, std::memory_order_relaxed);
  return moved;
}

void UnmapPages(void* pages, size_t bytes) {
  if (pages == nullptr) return;
  bytes = RoundUp(bytes);
  munmap(pages, bytes);
  g_mapped.fetch_sub(bytes, std::memory_order_relaxed);
}

void CountShared(size_t bytes) {
  g_shared.fetch_add(RoundUp(bytes), std::memory_order_relaxed);
}

void ForgetSharedInChild() {
  g_shared.store(0, std::memory_order_relaxed);
}

size_t MappedPages() {
  return g_mapped.load(std::memory_order_relaxed) + g_shared.load(std::memory_order_relaxed);
}

}  // namespace gpumemtrace::recorder
