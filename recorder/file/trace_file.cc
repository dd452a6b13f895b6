#include "recorder/file/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "recorder/system.h"

namespace gpumemtrace::recorder {
namespace {

// Of a packet whose descriptor the host takes each time.
constexpr int kMostAttempts = 3;

// Programs use low numbers, and shells and servers hand out numbers from below: stay out of their way, but
// not so high that the kernel must enlarge the table of descriptors.
int HighDescriptor() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t most = std::min<rlim_t>(limit.rlim_cur, 1024);
  return most > 64 ? static_cast<int>(most) - 24 : 3;
}

}  // namespace

int FileLayer::Open(const char* path, int flags, mode_t mode) {
  return sys::Open(path, flags, mode);
}
int FileLayer::Close(int fd) {
  return sys::Close(fd);
}
int64_t FileLayer::Write(int fd, const void* data, size_t bytes) {
  return sys::Write(fd, data, bytes);
}
int FileLayer::Truncate(int fd, uint64_t bytes) {
  return sys::Truncate(fd, bytes);
}
int FileLayer::TruncateNamed(const char* path, uint64_t bytes) {
  return sys::TruncateNamed(path, bytes);
}
int FileLayer::StatusNamed(const char* path, struct stat* status) {
  return sys::StatusNamed(path, status);
}
int FileLayer::Status(int fd, struct stat* status) {
  return sys::Status(fd, status);
}
int FileLayer::DuplicateAbove(int fd, int lowest) {
  return sys::DuplicateAbove(fd, lowest);
}

int64_t FileLayer::ReadAt(int fd, void* data, size_t bytes, uint64_t offset) {
  return sys::ReadAt(fd, data, bytes, offset);
}
int FileLayer::Rename(const char* from, const char* to) {
  return sys::Rename(from, to);
}
int FileLayer::Unlink(const char* path) {
  return sys::Unlink(path);
}

FileLayer& SystemFileLayer() {
  // Never destroyed: it is used after static destructors, too.
  alignas(FileLayer) static unsigned char memory[sizeof(FileLayer)];
  static FileLayer* const layer = new (memory) FileLayer;
  return *layer;
}

int TraceFile::Create(const char* path) {
  // The host may change its working directory later, and we may have to open the file again by its name.
  const size_t length = strlen(path);
  if (path[0] == '/') {
    if (length >= sizeof path_) return -ENAMETOOLONG;
    memcpy(path_, path, length + 1);
  } else {
    if (getcwd(path_, sizeof path_) == nullptr) return -errno;
    const size_t folder = strlen(path_);
    if (folder + length + 2 > sizeof path_) return -ENAMETOOLONG;
    path_[folder] = '/';
    memcpy(path_ + folder + 1, path, length + 1);
  }
  // O_APPEND: a descriptor that is opened again goes on at the end.
  const int fd = layer_.Open(path_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_APPEND, 0666);
  if (fd < 0) return fd;
  struct stat status;
  const int error = layer_.Status(fd, &status);
  if (error < 0) {
    layer_.Close(fd);
    return error;
  }
  device_ = status.st_dev;
  inode_ = status.st_ino;
  const int high = layer_.DuplicateAbove(fd, HighDescriptor());
  if (high >= 0) layer_.Close(fd);
  fd_ = high >= 0 ? high : fd;
  return 0;
}

int TraceFile::Verify() {
  struct stat status;
  if (fd_ >= 0) {
    if (layer_.Status(fd_, &status) == 0 && IsOurs(status)) return 0;
    // Closed, or now a file of the host: it is theirs, leave it alone.
    fd_ = -1;
  }
  const int fd = layer_.Open(path_, O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_APPEND, 0);
  if (fd < 0) return fd;
  const int error = layer_.Status(fd, &status);
  if (error < 0 || !IsOurs(status)) {
    layer_.Close(fd);
    // Somebody moved our file away or replaced it.
    return error < 0 ? error : -ESTALE;
  }
  const int high = layer_.DuplicateAbove(fd, HighDescriptor());
  if (high >= 0) layer_.Close(fd);
  fd_ = high >= 0 ? high : fd;
  return 0;
}

int TraceFile::CutBack() {
  // By its name where that is still ours: then no descriptor can be another file's.
  struct stat status;
  int error = 0;
  if (layer_.StatusNamed(path_, &status) == 0 && IsOurs(status)) {
    error = layer_.TruncateNamed(path_, size_);
  } else if ((error = Verify()) == 0) {
    error = layer_.Truncate(fd_, size_);
  }
  if (error == 0) torn_ = false;
  return error;
}

int TraceFile::CutTo(uint64_t size) {
  if (size == size_) return 0;
  size_ = size;
  torn_ = true;
  return CutBack();
}

int TraceFile::Append(std::span<const uint8_t> bytes) {
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    int error = Verify();
    if (error < 0) return error;
    if (torn_ && (error = CutBack()) < 0) return error;
    size_t done = 0;
    bool kept = true;
    error = WriteAll(bytes, &done, &kept);
    if (error == 0 && kept) {
      size_ += bytes.size();
      return 0;
    }
    torn_ = done > 0;
    const uint64_t strayed = strayed_;
    if (!kept) {
      const int lost = CountStrayed(done);
      if (error == 0) error = lost;
    }
    if (error == 0 && strayed_ == strayed) {
      size_ += bytes.size();
      torn_ = false;
      return 0;
    }
    if (torn_) CutBack();
    // Closed under our hands: once more.
    if (error < 0 && (kept || attempt + 1 == kMostAttempts)) return error;
  }
  return -ESTALE;
}

int TraceFile::WriteAll(std::span<const uint8_t> bytes, size_t* done, bool* kept) {
  int error = 0;
  while (*done < bytes.size()) {
    const int64_t written = layer_.Write(fd_, bytes.data() + *done, bytes.size() - *done);
    if (written == -EINTR) continue;
    // If the descriptor is ours now, it was: nobody but us gives it our file.
    *kept &= IsOurs(fd_);
    if (written <= 0) return written == 0 ? -EIO : static_cast<int>(written);
    *done += static_cast<size_t>(written);
    if (*done < bytes.size() && (error = Verify()) < 0) return error;
  }
  return 0;
}

int TraceFile::CountStrayed(size_t done) {
  int error = Verify();
  struct stat status;
  if (error == 0) error = layer_.Status(fd_, &status);
  if (error != 0) return error;
  const uint64_t end = size_ + done;
  const auto size = static_cast<uint64_t>(status.st_size);
  if (IsOurs(status) && size < end) strayed_ += end - std::max(size, size_);
  return 0;
}

bool TraceFile::IsOurs(int fd) const {
  struct stat status;
  return layer_.Status(fd, &status) == 0 && IsOurs(status);
}

int64_t TraceFile::ReadAt(uint64_t offset, std::span<uint8_t> out) const {
  if (read_fd_ < 0 || !IsOurs(read_fd_)) {
    const int fd = layer_.Open(path_, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return fd;
    if (!IsOurs(fd)) {
      layer_.Close(fd);
      return -ESTALE;
    }
    const int high = layer_.DuplicateAbove(fd, HighDescriptor());
    if (high >= 0) layer_.Close(fd);
    read_fd_ = high >= 0 ? high : fd;
  }
  size_t done = 0;
  while (done < out.size()) {
    const int64_t got = layer_.ReadAt(read_fd_, out.data() + done, out.size() - done, offset + done);
    if (got == -EINTR) continue;
    if (got < 0) return got;
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return static_cast<int64_t>(done);
}

int TraceFile::ReplaceBy(TraceFile& newer) {
  // Whether the name is still ours: what somebody else put there is not replaced.
  const int named = layer_.Open(path_, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
  if (named < 0) return named;
  const bool ours = IsOurs(named);
  layer_.Close(named);
  if (!ours) return -ESTALE;
  int error = newer.Verify();
  if (error < 0 || (newer.torn_ && (error = newer.CutBack()) < 0)) return error;
  error = layer_.Rename(newer.path_, path_);
  if (error < 0) return error;
  Close();
  fd_ = newer.fd_;
  device_ = newer.device_;
  inode_ = newer.inode_;
  size_ = newer.size_;
  strayed_ += newer.strayed_;
  torn_ = false;
  newer.fd_ = -1;
  newer.Close();
  return 0;
}

void TraceFile::Remove() {
  Close();
  if (path_[0] != '\0') layer_.Unlink(path_);
}

void TraceFile::Close() {
  if (fd_ >= 0 && IsOurs(fd_)) layer_.Close(fd_);
  if (read_fd_ >= 0 && IsOurs(read_fd_)) layer_.Close(read_fd_);
  fd_ = read_fd_ = -1;
}

}  // namespace gpumemtrace::recorder
