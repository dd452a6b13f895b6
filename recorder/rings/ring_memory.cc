#include "recorder/rings/ring_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "recorder/memory/pages.h"
#include "recorder/process_facts.h"
#include "recorder/system.h"

namespace gpumemtrace::recorder {
namespace {

constexpr uint64_t kPage = 4096;
// The file never takes more than this, nor more than half of what its file system has free at the start: it
// is memory that other programs may need. Threads beyond that get small private rings.
constexpr uint64_t kFileBudget = uint64_t{256} << 20;
constexpr uint64_t kSmallRing = uint64_t{64} << 10;

constexpr uint64_t RoundToPage(uint64_t bytes) {
  return (bytes + kPage - 1) & ~(kPage - 1);
}

// The mapping must not reach a forked child: parent and child would write into the same rings.
void KeepFromChildren(void* pages, size_t bytes) {
  madvise(pages, bytes, MADV_DONTFORK);
}

}  // namespace

void RingMemory::Problem(const char* place, int error) {
  const size_t used = strlen(problem_);
  if (used + 1 >= sizeof problem_) return;
  char text[64];
  // The GNU variant returns the text, perhaps not in `text`.
  const char* reason = error == 0 ? "too little room" : strerror_r(error, text, sizeof text);
  snprintf(problem_ + used, sizeof problem_ - used, "%s%s: %s", used == 0 ? "" : "; ", place, reason);
}

void RingMemory::Create(const RingMemoryOptions& options) {
  capacity_ = options.capacity;
  const RingPlace place = options.place;
  if (place == RingPlace::kAuto || place == RingPlace::kSharedMemory) {
    char path[sizeof path_];
    snprintf(path, sizeof path, "%s/gpumemtrace-%ld-%016llx.rings", options.shared_memory_folder,
             static_cast<long>(getpid()), static_cast<unsigned long long>(options.ring_key));
    if (CreateAt(path, options)) return;
  }
  if (place == RingPlace::kAuto || place == RingPlace::kBesideTrace) {
    char path[sizeof path_];
    const int length = snprintf(path, sizeof path, "%s.rings", options.trace_path);
    if (length > 0 && static_cast<size_t>(length) < sizeof path && CreateAt(path, options)) return;
  }
  path_[0] = '\0';
  header_ = nullptr;
}

bool RingMemory::CreateAt(const char* path, const RingMemoryOptions& options) {
  const int fd = sys::Open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) {
    Problem(path, -fd);
    return false;
  }
  size_t names_bytes = 0;
  for (const char* name : options.api_names) names_bytes += strlen(name) + 1;
  const uint64_t header_bytes = RoundToPage(sizeof(ring_file::FileHeader) + names_bytes);
  const uint64_t stride = ring_file::kRingDataOffset + capacity_;

  // Files on disk are not memory, but the same bound serves them.
  uint64_t budget = kFileBudget;
  struct statfs space;
  if (fstatfs(fd, &space) == 0) {
    const uint64_t free_bytes = static_cast<uint64_t>(space.f_bavail) * static_cast<uint64_t>(space.f_bsize);
    budget = std::min(budget, free_bytes / 2);
  }
  struct stat status;
  void* pages = MAP_FAILED;
  int error = 0;
  if (budget < header_bytes + 4 * stride) {
    error = -1;
  } else if ((error = -sys::Status(fd, &status)) == 0 && (error = -sys::Allocate(fd, 0, header_bytes)) == 0) {
    pages = mmap(nullptr, header_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (pages == MAP_FAILED) error = errno;
  }
  if (error == 0) {
    device_ = status.st_dev;
    inode_ = status.st_ino;
    snprintf(path_, sizeof path_, "%s", path);
    first_ring_offset_ = header_bytes;
    file_ring_limit_ = static_cast<uint32_t>((budget - header_bytes) / stride);
    KeepFromChildren(pages, header_bytes);

    auto* header = static_cast<ring_file::FileHeader*>(pages);
    memcpy(header->magic, ring_file::kMagic, sizeof header->magic);
    header->version = ring_file::kVersion;
    header->header_bytes = sizeof(ring_file::FileHeader);
    header->ring_key = options.ring_key;
    header->process_id = static_cast<uint64_t>(getpid());
    header->process_start_ticks = ProcessStartTicks();
    snprintf(header->boot_id, sizeof header->boot_id, "%s", options.boot_id);
    header->first_ring_offset = first_ring_offset_;
    header->ring_stride = stride;
    header->ring_capacity = capacity_;
    header->ring_limit = file_ring_limit_;
    header->names_offset = sizeof(ring_file::FileHeader);
    header->names_count = static_cast<uint32_t>(options.api_names.size());
    header->names_bytes = static_cast<uint32_t>(names_bytes);
    char* names = static_cast<char*>(pages) + header->names_offset;
    for (const char* name : options.api_names) {
      const size_t length = strlen(name) + 1;
      memcpy(names, name, length);
      names += length;
    }
    snprintf(header->trace_path, sizeof header->trace_path, "%s", options.trace_path);
    header_ = header;
    sys::Close(fd);
    return true;
  }
  Problem(path, error == -1 ? 0 : error);
  sys::Close(fd);
  sys::Unlink(path);
  return false;
}

void RingMemory::RemoveFile() {
  if (path_[0] == '\0') return;
  sys::Unlink(path_);
  path_[0] = '\0';
  file_ring_limit_ = file_rings_;
}

ring_file::RingHeader* RingMemory::GrowFile(uint32_t* index) {
  if (header_ == nullptr || file_rings_ >= file_ring_limit_) return nullptr;
  // No descriptor is kept: the host may close any. The name may have been taken by another file, too.
  const int fd = sys::Open(path_, O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0);
  if (fd < 0) return nullptr;
  struct stat status;
  ring_file::RingHeader* ring = nullptr;
  const uint64_t stride = ring_file::kRingDataOffset + capacity_;
  const uint64_t offset = first_ring_offset_ + file_rings_ * stride;
  if (sys::Status(fd, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_ &&
      sys::Allocate(fd, offset, stride) == 0) {
    void* pages = mmap(nullptr, stride, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                       static_cast<off_t>(offset));
    if (pages != MAP_FAILED) {
      KeepFromChildren(pages, stride);
      CountShared(stride);
      ring = static_cast<ring_file::RingHeader*>(pages);
    }
  }
  sys::Close(fd);
  if (ring == nullptr) {
    // Full now; it will hardly become better, and asking again for every thread would cost.
    file_ring_limit_ = file_rings_;
    return nullptr;
  }
  *index = file_rings_++;
  return ring;
}

ring_file::RingHeader* RingMemory::NewRing(uint32_t* index, uint64_t* capacity, bool* in_file) {
  ring_file::RingHeader* ring = GrowFile(index);
  *in_file = ring != nullptr;
  *capacity = capacity_;
  if (ring == nullptr) {
    // Without any file the first rings have full size; those that came too late for the file are small.
    if (header_ != nullptr || private_rings_ >= 64) *capacity = std::min(capacity_, kSmallRing);
    ring = static_cast<ring_file::RingHeader*>(MapPages(ring_file::kRingDataOffset + *capacity));
    if (ring == nullptr) return nullptr;
    *index = private_rings_++;
  }
  ring->index = *index;
  ring->pending = kNothingPending;
  if (*in_file) {
    // Published last: a reader never sees a ring that is not set up.
    std::atomic_ref<uint32_t>(header_->ring_count).store(file_rings_, std::memory_order_release);
  }
  return ring;
}

}  // namespace gpumemtrace::recorder
