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

constexpr uint32_t kMostPressure = 5;
// One pass makes about so many windows of the detail that it folds.
constexpr uint64_t kWindowsPerPass = 96;
// Beyond these, windows are merged by twos.
constexpr uint32_t kMostWindows = 256;
// Parts of the bound: less detail than this is not folded, and at least so much is left as it is.
constexpr uint64_t kLeastDetail = 64;
constexpr uint64_t kLeastKept = 64;
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
  // Of what is not folded yet, the newer half stays as it is.
  uint64_t folded = 0;
  for (size_t i = 0; i + 1 < groups.size(); ++i) {
    if (groups[i].windows != 0) folded += groups[i + 1].offset - groups[i].offset;
  }
  const uint64_t keep = std::max((size - std::min(folded, size)) / 2, max_bytes_ / kLeastKept);
  size_t keep_from = 0;
  uint64_t detail = 0;
  for (size_t i = 1; i < groups.size() && groups[i].offset + keep <= size; ++i) {
    keep_from = i;
    if (groups[i - 1].windows == 0) detail += groups[i].offset - groups[i - 1].offset;
  }
  // Too little to be worth it.
  if (keep_from < 2 || detail < max_bytes_ / kLeastDetail) {
    due_ = size + Growth();
    return;
  }
  const int length =
      snprintf(path_, sizeof path_, "%s.fold-%08x", file_.path(), static_cast<unsigned>(sys::RandomNumber()));
  void* memory = MapPages(sizeof(Folder));
  if (length < 0 || static_cast<size_t>(length) >= sizeof path_ || memory == nullptr) {
    UnmapPages(memory, memory == nullptr ? 0 : sizeof(Folder));
    due_ = size + Growth();
    return;
  }
  folder_ = new (memory) Folder(layer_);
  ready_ = false;
  keep_from_ = keep_from;
  size_ = begun_at_ = size;
  // A trace that is too large already may still grow while it is made smaller.
  // The last packet may reach beyond the limit.
  limit_ = std::max(Half() - Growth() / 8, size + Growth() / 2);
  busy_.store(true, std::memory_order_relaxed);
  Array<uint64_t> peaks;
  writer_.HighestMoments(peaks);
  const int error =
      folder_->Begin(file_, path_,
                     {.groups = groups.span(),
                      .keep_from = keep_from,
                      .size = size,
                      .peaks = peaks.span(),
                      .window_bytes = std::max<uint64_t>(detail / (kWindowsPerPass >> pressure_), 1),
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
  const uint64_t folded = folder_->folded_size();
  const uint64_t copied = folder_->copied_stretches();
  const bool known = writer_.Replaced(folder_->groups(), keep_from_, folder_->cut(), folded);
  // It has the trace's name now.
  unfinished_.store(false, std::memory_order_relaxed);
  Drop();
  ++passes_;
  copied_stretches_ += copied;
  Plan(file_.size(), folded);
  if (!known) due_ = ~uint64_t{0};
}

void Folding::Plan(uint64_t size, uint64_t folded) {
  if (folded > max_bytes_ / 4) {
    if (pressure_ < kMostPressure) ++pressure_;
  } else if (folded < max_bytes_ / 16 && pressure_ > 0) {
    --pressure_;
  }
  // Where what must stay has become too much, passes become rarer with it: each copies all of it.
  due_ = std::max(Half() - Growth(), size + std::max(Growth(), folded / 4));
}

bool Folding::Hurried() const {
  if (folder_ == nullptr || ready_) return false;
  const uint64_t grown = file_.size() - begun_at_;
  // The part of the growth that was allowed is ahead of the part of the work that is done.
  return grown > Growth() / 8 && grown * size_ > Growth() / 2 * folder_->position();
}

void Folding::Cancel() {
  cancelled_.store(true, std::memory_order_relaxed);
  busy_.store(false, std::memory_order_relaxed);
  // Another thread may still write to it through its descriptor; that space is given back when it closes.
  if (unfinished_.load(std::memory_order_acquire)) layer_.Unlink(path_);
}

void Folding::Fail(int error) {
  Drop();
  due_ = file_.size() + max_bytes_ / 16;
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
  busy_.store(false, std::memory_order_relaxed);
  if (folder_ == nullptr) return;
  if (unfinished_.exchange(false, std::memory_order_relaxed)) folder_->Abandon();
  Folder* folder = folder_;
  folder_ = nullptr;
  folder->~Folder();
  UnmapPages(folder, sizeof(Folder));
}

}  // namespace gpumemtrace::recorder
