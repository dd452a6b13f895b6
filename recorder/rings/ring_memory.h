// Memory for rings: the MAP_SHARED ring file, which grows by one ring at a time, and private memory when no
// file can be had. Layout: proto/gpumemtrace/ring_file.h.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <span>

#include "proto/gpumemtrace/ring_file.h"
#include "recorder/rings/ring.h"

namespace gpumemtrace::recorder {

enum class RingPlace : uint8_t {
  // /dev/shm when it has room, else beside the trace, else private memory.
  kAuto,
  kSharedMemory,
  kBesideTrace,
  kPrivate,
};

struct RingMemoryOptions {
  RingPlace place = RingPlace::kAuto;
  // A power of two.
  uint64_t capacity = uint64_t{1} << 20;
  const char* trace_path = "";
  uint64_t ring_key = 0;
  const char* boot_id = "";
  std::span<const char* const> api_names;
  // A folder instead of /dev/shm, for tests.
  const char* shared_memory_folder = "/dev/shm";
};

class RingMemory {
 public:
  // Makes the file and its first ring, or falls back. Cannot fail: private memory needs nothing yet.
  void Create(const RingMemoryOptions& options);
  // Gives up the file's name; the mapped rings stay usable.
  void RemoveFile();

  // "" when rings are private.
  const char* path() const { return path_; }
  // Why the rings are not where they would be best, for a note; "" when they are.
  const char* problem() const { return problem_; }
  ring_file::FileHeader* header() { return header_; }

  // Memory for one more ring: `*in_file` tells which sort. Null when there is none.
  ring_file::RingHeader* NewRing(uint32_t* index, uint64_t* capacity, bool* in_file);

 private:
  bool CreateAt(const char* path, const RingMemoryOptions& options);
  ring_file::RingHeader* MapRing(int fd, uint32_t index);
  ring_file::RingHeader* GrowFile(uint32_t* index);
  void Problem(const char* place, int error);

  char path_[1100] = "";
  char problem_[512] = "";
  dev_t device_ = 0;
  ino_t inode_ = 0;
  uint64_t capacity_ = 0;
  uint64_t first_ring_offset_ = 0;
  uint32_t file_rings_ = 0;
  uint32_t file_ring_limit_ = 0;
  uint32_t private_rings_ = 0;
  ring_file::FileHeader* header_ = nullptr;
};

}  // namespace gpumemtrace::recorder
