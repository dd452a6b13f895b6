// Memory of the recorder. It comes straight from mmap, never from the host's malloc: an allocator hook of
// the host, a fork in another thread, or a handler that interrupted malloc cannot meet us there.
#pragma once

#include <cstddef>

namespace gpumemtrace::recorder {

// Zero-filled, page-aligned memory, or null. `bytes` is rounded up to whole pages.
void* MapPages(size_t bytes);
// Grows or shrinks a mapping made by MapPages; null when that failed, and the old one is as it was.
void* RemapPages(void* pages, size_t old_bytes, size_t new_bytes);
void UnmapPages(void* pages, size_t bytes);

// Memory of the recorder that was mapped otherwise, from a file, and that the child of a fork does not have.
void CountShared(size_t bytes);
void ForgetSharedInChild();
// Bytes mapped by the functions above and not unmapped, and those counted, in this process.
size_t MappedPages();

}  // namespace gpumemtrace::recorder
