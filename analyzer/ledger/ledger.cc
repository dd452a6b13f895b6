#include "analyzer/ledger/ledger.h"

#include <algorithm>

#include "analyzer/ledger/lifetimes.h"

namespace gpumemtrace::analyzer {
namespace {

constexpr size_t kBatchChanges = 1024;
constexpr size_t kMaxFreedAddresses = 1u << 20;

void Remove(Totals& totals, uint64_t size) {
  totals.bytes -= size;
  --totals.count;
  ++totals.deaths;
}

const Totals kNoTotals;

}  // namespace

Ledger::Ledger(const TraceModel& model) : model_(model), changes_(kBatchChanges + 16) {}
Ledger::~Ledger() = default;

Ledger::DeviceBook& Ledger::AddBook(int32_t device) {
  const size_t index = static_cast<size_t>(device + int64_t{1});
  const bool small = index < book_of_device_.size();
  for (const std::unique_ptr<DeviceBook>& book : books_) {
    if (book->device == device) return *book;
  }
  books_.push_back(std::make_unique<DeviceBook>());
  books_.back()->device = device;
  if (small) book_of_device_[index] = books_.back().get();
  return *books_.back();
}

std::vector<int32_t> Ledger::devices() const {
  std::vector<int32_t> devices;
  for (const std::unique_ptr<DeviceBook>& book : books_) devices.push_back(book->device);
  std::sort(devices.begin(), devices.end());
  return devices;
}

const Totals& Ledger::totals(Level level, int32_t device) const {
  for (const std::unique_ptr<DeviceBook>& book : books_) {
    if (book->device == device) return book->levels[static_cast<size_t>(level)];
  }
  return kNoTotals;
}

const Totals& Ledger::segment_totals(Space space, int32_t device) const {
  for (const std::unique_ptr<DeviceBook>& book : books_) {
    if (book->device == device) return book->spaces[static_cast<size_t>(space)];
  }
  return kNoTotals;
}

const AddressRange* Ledger::FindRange(uint64_t address) const {
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return nullptr;
  --after;
  return address < after->second.end ? &after->second : nullptr;
}

uint64_t Ledger::MappedBytes(uint32_t slot) const {
  const auto found = references_.find(slot);
  return found == references_.end() ? 0 : found->second.mapped_bytes;
}

void Ledger::Death(uint32_t slot, const TraceEvent& event, uint8_t flags) {
  Allocation& allocation = allocations_[slot];
  AddChange(event, ChangeKind::kDeath, slot, flags);
  allocation.live = false;
  DeviceBook& book = Book(allocation.device);
  Remove(book.levels[static_cast<size_t>(allocation.level)], allocation.size);
  switch (allocation.level) {
    case Level::kBlock:
      blocks_.Erase(allocation.address, slot);
      if (allocation.segment == kNoSlot) --book.homeless_blocks;
      break;
    case Level::kSegment:
      Remove(book.spaces[static_cast<size_t>(allocation.space)], allocation.size);
      if (allocation.holds_blocks) book.block_segments -= allocation.size;
      if (allocation.space == Space::kVirtual) {
        references_.erase(slot);
        break;
      }
      segments_.Erase(allocation.address, slot);
      if (freed_.size() >= kMaxFreedAddresses) freed_.clear();
      freed_.insert(allocation.address);
      if (HasAddressRange(allocation.space)) {
        const auto range = ranges_.find(allocation.address);
        if (range != ranges_.end() && range->second.slot == slot) {
          ranges_.erase(range);
          RangesChanged();
        }
      }
      break;
    case Level::kAlias:
      references_.erase(slot);
      physical_.Erase(allocation.address, slot);
      break;
    case Level::kReservation:
      reservations_.Erase(allocation.address, slot);
      break;
    case Level::kHandle:
      handles_.Erase(allocation.address, slot);
      break;
  }
  free_slots_.push_back(slot);
}

void Ledger::UnknownFree(const TraceEvent& event, const SiteInfo& site, Level level, uint8_t flags) {
  ++anomalies_.unknown_frees;
  if ((flags & kChangeDoubleFree) != 0) ++anomalies_.double_frees;
  AddFreeStanding(event, site, ChangeKind::kUnknownFree, level).flags = flags;
}

Change& Ledger::AddFreeStanding(const TraceEvent& event, const SiteInfo& site, ChangeKind kind, Level level) {
  Change& change = changes_.Next();
  change = {};
  change.index = event.index;
  change.sequence = event.sequence;
  change.time_us = event.time_us;
  change.address = event.address;
  change.size = event.size;
  if (level == Level::kBlock) {
    change.reported_allocated = event.argument[0];
    change.reported_reserved = event.argument[1];
  }
  change.site = event.site;
  change.cause = event.site;
  change.device = site.device;
  change.kind = kind;
  change.level = level;
  change.space = site.space;
  return change;
}

void Ledger::OnEvents(std::span<const TraceEvent> events) {
  if (events.empty()) return;
  if (events_ == 0) first_time_us_ = events.front().time_us;
  events_ += events.size();
  position_ = std::max(position_, events.back().index + 1);
  for (const TraceEvent& event : events) {
    const SiteInfo& site = model_.Site(event.site);
    if (IsBlock(event.kind)) {
      OnBlockEvent(event, site);
    } else {
      OnSegmentEvent(event, site);
    }
    if (changes_.size() >= kBatchChanges) Deliver();
  }
  last_time_us_ = std::max(last_time_us_, events.back().time_us);
  Deliver();
}

void Ledger::Deliver() {
  if (changes_.empty()) return;
  for (LedgerObserver* observer : observers_) observer->OnChanges(*this, changes_.all());
  changes_.clear();
}

void Ledger::OnMark(const TraceMark& mark) {
  if (folded_ != nullptr) position_ = std::max(position_, folded_->IndexAt(mark.sequence));
  for (LedgerObserver* observer : observers_) observer->OnMark(*this, mark);
}

void Ledger::OnDeviceReading(const DeviceReading& reading) {
  if (folded_ != nullptr) position_ = std::max(position_, folded_->IndexAt(reading.sequence));
  Book(reading.device);
  for (LedgerObserver* observer : observers_) observer->OnDeviceReading(*this, reading);
}

void Ledger::OnContent(const Content& content) {
  for (LedgerObserver* observer : observers_) observer->OnContent(*this, content);
}

void Ledger::OnFoldedBegin(const FoldedWindow& window) {
  Deliver();
  folded_ = &window;
  if (events_ == 0) first_time_us_ = window.first_time_us;
  blocks_before_folded_ = BlockBirths();
  for (LedgerObserver* observer : observers_) observer->OnFoldedBegin(*this, window);
}

void Ledger::OnFolded(const FoldedWindow& window) {
  Deliver();
  folded_ = nullptr;
  position_ = std::max(position_, window.last_index + 1);
  last_time_us_ = std::max(last_time_us_, window.last_time_us);
  events_ += window.events_dropped;
  folded_windows_ += window.windows;
  folded_events_ += window.events_dropped;
  folded_until_us_ = std::max(folded_until_us_, window.last_time_us);
  const uint64_t blocks_kept = BlockBirths() - blocks_before_folded_;
  uint64_t blocks = 0;
  for (const FoldedStack& stack : window.stacks) {
    const SiteInfo& site = model_.Site(stack.site);
    if (IsBlock(site.kind)) blocks += stack.births;
  }
  // Each that is gone was a birth and a death.
  if (blocks > blocks_kept) block_events_ += 2 * (blocks - blocks_kept);
  for (const FoldedPeak& peak : window.peaks) {
    if (!peak.blocks || window.totals_agreed + window.totals_disagreed == 0) continue;
    SelfCheck& check = self_checks_[peak.device];
    check.allocated_checked += window.totals_agreed + window.totals_disagreed;
    check.allocated_disagree += window.totals_disagreed;
    check.reported_allocated_peak = std::max(check.reported_allocated_peak, peak.bytes);
    break;
  }
  for (LedgerObserver* observer : observers_) observer->OnFolded(*this, window);
}

uint64_t Ledger::BlockBirths() const {
  uint64_t births = 0;
  for (const std::unique_ptr<DeviceBook>& book : books_) {
    births += book->levels[static_cast<size_t>(Level::kBlock)].births;
  }
  return births;
}

void Ledger::OnGap() {
  ++anomalies_.gaps;
  for (const std::unique_ptr<DeviceBook>& book : books_) book->resynchronize = true;
  for (LedgerObserver* observer : observers_) observer->OnGap(*this);
}

void Ledger::Finish() {
  Deliver();
  for (LedgerObserver* observer : observers_) observer->OnEnd(*this);
}

}  // namespace gpumemtrace::analyzer
