// The trace file as the recorder writes it: created exclusively, appended to, and never another file than
// the one that was created, whatever the host does with descriptors.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpumemtrace::recorder {

// The system calls that the trace file makes, so that tests can make them fail. Each returns a result or
// −errno, as in system.h.
class FileLayer {
 public:
  virtual int Open(const char* path, int flags, mode_t mode);
  virtual int Close(int fd);
  virtual int64_t Write(int fd, const void* data, size_t bytes);
  virtual int Truncate(int fd, uint64_t bytes);
  virtual int TruncateNamed(const char* path, uint64_t bytes);
  virtual int Status(int fd, struct stat* status);
  // Of a symbolic link itself.
  virtual int StatusNamed(const char* path, struct stat* status);
  virtual int DuplicateAbove(int fd, int lowest);
  virtual int64_t ReadAt(int fd, void* data, size_t bytes, uint64_t offset);
  virtual int Rename(const char* from, const char* to);
  virtual int Unlink(const char* path);

  constexpr FileLayer() = default;
  virtual ~FileLayer() = default;
  FileLayer(const FileLayer&) = delete;
  FileLayer& operator=(const FileLayer&) = delete;
};
FileLayer& SystemFileLayer();

class TraceFile {
 public:
  explicit TraceFile(FileLayer& layer = SystemFileLayer()) : layer_(layer) {}

  // Creates `path`, which must not exist and is not followed when it is a symbolic link; mode 0666 less the
  // user's umask. 0 or −errno.
  int Create(const char* path);
  // Appends all bytes, or none: after a failure the file ends where it ended before. 0 or −errno. Call it
  // with signals blocked (sys::Undisturbed): SIGXFSZ may come.
  //
  // A program that closes the descriptor and gives its number to a file of its own between our look at it and
  // the write, a matter of a microsecond, gets our bytes: no system call takes a file that it must be. That
  // is seen afterwards, counted in strayed(), and the bytes are appended again where they belong.
  int Append(std::span<const uint8_t> bytes);
  void Close();
  // Cuts it to its first `size` bytes, of `size()`. 0 or −errno; after a failure the bytes behind count as
  // torn.
  int CutTo(uint64_t size);
  // Reads what was appended, through a descriptor of its own. Bytes read, fewer at the end of the file, or
  // −errno. May run beside Append on another thread, not beside itself, ReplaceBy or Close.
  int64_t ReadAt(uint64_t offset, std::span<uint8_t> out) const;
  // Puts `newer` in our place: the name is ours, the content is its. Atomic for whoever opens the name, and
  // nothing has changed after a failure. `newer` is closed afterwards.
  int ReplaceBy(TraceFile& newer);
  // Closes and removes it.
  void Remove();

  // Bytes that did not reach the file although a write took them.
  uint64_t strayed() const { return strayed_; }

  const char* path() const { return path_; }
  // Bytes of the file that are good.
  uint64_t size() const { return size_; }

 private:
  // Makes fd_ the descriptor of our file, reopening it when the host closed it or took its number.
  int Verify();
  int CutBack();
  int WriteAll(std::span<const uint8_t> bytes, size_t* done, bool* kept);
  // Counts what of `done` bytes, which were written behind size_, is not there. 0 or −errno: not known.
  int CountStrayed(size_t done);
  bool IsOurs(const struct stat& status) const { return status.st_dev == device_ && status.st_ino == inode_; }
  bool IsOurs(int fd) const;

  FileLayer& layer_;
  char path_[4096] = "";
  int fd_ = -1;
  mutable int read_fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  uint64_t size_ = 0;
  uint64_t strayed_ = 0;
  // Bytes after `size_` may be the beginning of a packet that could not be completed.
  bool torn_ = false;
};

}  // namespace gpumemtrace::recorder
