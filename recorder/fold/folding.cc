#include "recorder/fold/folding.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <new>

#include "recorder/memory/pages.h"
#include "recorder/message.h"
#include "recorder/system.h"

namespace gpumemtrace::recorder {
namespace {

constexpr uint32_t kMostPressure = 3;
// One pass makes about so many windows of the detail that it folds.
constexpr uint64_t kWindowsPerPass = 96;
// Beyond these, windows are merged by twos.
constexpr uint32_t kMostWindows = 256;
// What Complete may still copy while others wait.
constexpr uint64_t kShortTail = uint64_t{256} << 10;

}  // namespace

void Folding::Begin() {
  if (folder_ != nullptr || max_bytes_ == 0 || file_.size() < due_ ||
      cancelled_.load(std::memory_order_relaxed)) {
    return;
  }
  const Array<TraceGroup>& groups = writer_.groups();
  const uint64_t size = file_.size();
  const uint64_t keep = std::min(KeepBytes(), size);
  size_t keep_from = 0;
  uint64_t detail = 0;
  for (size_t i = 1; i < groups.size() && groups[i].offset <= size - keep; ++i) {
    keep_from = i;
    if (groups[i - 1].windows == 0) detail += groups[i].offset - groups[i - 1].offset;
  }
  // Too little to be worth it.
  if (keep_from < 2 || detail < max_bytes_ / 16) {
    due_ = size + max_bytes_ / 16;
    return;
  }
  const int length =
      snprintf(path_, sizeof path_, "%s.fold-%08x", file_.path(), static_cast<unsigned>(sys::RandomNumber()));
  void* memory = MapPages(sizeof(Folder));
  if (length < 0 || static_cast<size_t>(length) >= sizeof path_ || memory == nullptr) {
    UnmapPages(memory, memory == nullptr ? 0 : sizeof(Folder));
    due_ = size + max_bytes_ / 8;
    return;
  }
  folder_ = new (memory) Folder(layer_);
  ready_ = false;
  keep_from_ = keep_from;
  size_ = size;
  Array<uint64_t> peaks;
  writer_.HighestMoments(peaks);
  const int error = folder_->Begin(file_, path_,
                                   {.groups = groups.span(),
                                    .keep_from = keep_from,
                                    .size = size,
                                    .peaks = peaks.span(),
                                    .window_bytes = std::max<uint64_t>(detail / kWindowsPerPass, 1),
                                    .most_windows = kMostWindows >> pressure_});
  // A file of this name that is somebody's is left alone.
  if (error != -EEXIST) unfinished_.store(true, std::memory_order_release);
  if (error < 0) Fail(error);
}

void Folding::Work(size_t bytes) {
  if (folder_ == nullptr || ready_) return;
  if (cancelled_.load(std::memory_order_relaxed)) {
    Drop();
    return;
  }
  int result = folder_->Turn(bytes);
  if (result == 1) result = folder_->CopyTail(size_, std::max(bytes, size_t{1} << 20));
  if (result == 1) ready_ = true;
  if (result < 0) error_ = result;
}

void Folding::Complete() {
  if (folder_ == nullptr) return;
  if (cancelled_.load(std::memory_order_relaxed)) {
    Drop();
    return;
  }
  if (error_ != 0) {
    Fail(error_);
    return;
  }
  if (!ready_) return;
  // Much was appended in the meantime: go on without keeping the others waiting.
  if (file_.size() - folder_->position() > kShortTail) {
    size_ = file_.size();
    ready_ = false;
    return;
  }
  int error = folder_->CopyTail(file_.size(), ~size_t{0} >> 1);
  if (error == 1) error = file_.ReplaceBy(folder_->file());
  if (error < 0) {
    Fail(error);
    return;
  }
  const bool known = writer_.Replaced(folder_->groups(), keep_from_, folder_->cut(), folder_->folded_size());
  // It has the trace's name now.
  unfinished_.store(false, std::memory_order_relaxed);
  Drop();
  ++passes_;
  const uint64_t size = file_.size();
  if (size > max_bytes_ / 2) {
    if (pressure_ < kMostPressure) ++pressure_;
  } else if (size < max_bytes_ / 3 && pressure_ > 0) {
    --pressure_;
  }
  due_ = known ? std::max(max_bytes_ / 8 * 5, size + max_bytes_ / 8) : ~uint64_t{0};
}

void Folding::Cancel() {
  cancelled_.store(true, std::memory_order_relaxed);
  // Another thread may still write to it through its descriptor; that space is given back when it closes.
  if (unfinished_.load(std::memory_order_acquire)) layer_.Unlink(path_);
}

void Folding::Fail(int error) {
  Drop();
  due_ = file_.size() + max_bytes_ / 8;
  if (complained_) return;
  complained_ = true;
  char text[512];
  snprintf(text, sizeof text,
           "Old windows could not be folded (%s): the trace may become larger than GPUMEMTRACE_MAX_BYTES",
           ErrorText(-error));
  writer_.AddNote(1, text);
}

void Folding::Drop() {
  error_ = 0;
  ready_ = false;
  if (folder_ == nullptr) return;
  if (unfinished_.exchange(false, std::memory_order_relaxed)) folder_->Abandon();
  Folder* folder = folder_;
  folder_ = nullptr;
  folder->~Folder();
  UnmapPages(folder, sizeof(Folder));
}

}  // namespace gpumemtrace::recorder
