#include "recorder/fold/window.h"

#include <algorithm>

#include "proto/gpumemtrace/event_columns.h"
#include "recorder/event.h"
#include "recorder/writer/fields.h"

namespace gpumemtrace::recorder {
namespace {

namespace columns = event_columns;

constexpr uint64_t kNone = ~uint64_t{0};
// Numbers of ColumnId in trace.proto.
enum : uint32_t {
  kSite = 1,
  kAddress = 2,
  kLive = 3,
  kTime = 4,
  kSequence = 5,
  kAllocated = 6,
  kReserved = 7,
  kArgument0 = 8,
  kArgument1 = 9,
  kSize = 10,
  kIndex = 11,
};
// A writer that made greater ids than this is not ours.
constexpr uint64_t kMostSites = uint64_t{1} << 28;
// Columns shorter than this are not worth a zstd frame.
constexpr size_t kLeastCompressed = 48;

// Objects of these kinds are counted by place, and their pairs may go.
constexpr bool Folds(uint32_t kind) {
  return kind == columns::kAllocate || kind == columns::kHandleCreate || kind == columns::kBlockAllocate;
}

bool InHostMemory(uint8_t space) {
  return space == static_cast<uint8_t>(Space::kPinnedHost) ||
         space == static_cast<uint8_t>(Space::kRegisteredHost) ||
         space == static_cast<uint8_t>(Space::kHostPool);
}

const char* Chars(const ByteBuffer& buffer) {
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

bool EventColumns::Load(std::span<const uint8_t> message, Decompressor& decompressor) {
  count = 0;
  first_index = first_time = first_sequence = 0;
  restart = predicted = false;
  time_step = 1;
  for (ByteBuffer& column : data) column.Clear();
  FieldReader reader(message);
  Field field;
  while (reader.Next(&field)) {
    switch (field.number) {
      case fields::kEventsCount:
        count = static_cast<uint32_t>(field.value);
        break;
      case fields::kEventsFirstIndex:
        first_index = field.value;
        break;
      case fields::kEventsFirstTime:
        first_time = field.value;
        break;
      case fields::kEventsFirstSequence:
        first_sequence = field.value;
        break;
      case fields::kEventsRestart:
        restart = field.value != 0;
        break;
      case fields::kEventsPredicted:
        predicted = field.value != 0;
        break;
      case fields::kEventsTimeStep:
        if (field.value != 0) time_step = field.value;
        break;
      case fields::kEventsColumn: {
        uint64_t id = 0;
        uint64_t codec = 0;
        uint64_t raw_size = 0;
        std::span<const uint8_t> bytes;
        FieldReader column(field.bytes);
        Field part;
        while (column.Next(&part)) {
          if (part.number == fields::kColumnId) id = part.value;
          if (part.number == fields::kColumnCodec) codec = part.value;
          if (part.number == fields::kColumnRawSize) raw_size = part.value;
          if (part.number == fields::kColumnData) bytes = part.bytes;
        }
        if (column.failed() || id == 0 || id >= kColumns) return false;
        if (codec == fields::kCodecZstd) {
          if (!decompressor.Decompress(bytes, raw_size, data[id])) return false;
        } else {
          data[id].Append(bytes.data(), bytes.size());
        }
        break;
      }
      default:
        return false;  // what it means for the events is not known here
    }
  }
  return !reader.failed();
}

// --- definitions ---

bool FoldWindow::DefineSite(std::span<const uint8_t> message, bool* is_new) {
  Site site{};
  uint64_t id = 0;
  uint64_t stacks = 0;
  uint64_t forward = 0;
  uint32_t api = 0;
  FieldReader reader(message);
  Field field;
  while (reader.Next(&field)) {
    switch (field.number) {
      case fields::kSiteId:
        id = field.value;
        break;
      case fields::kSiteKind:
        site.kind = static_cast<uint8_t>(field.value);
        break;
      case fields::kSiteSpace:
        site.space = static_cast<uint8_t>(field.value);
        break;
      case fields::kSiteApi:
        api = static_cast<uint32_t>(field.value);
        break;
      case fields::kSiteDevice:
        site.device = static_cast<int32_t>(field.Signed());
        break;
      case fields::kSiteSize:
        site.size = field.value;
        break;
      case fields::kSiteNativeStack:
        stacks |= field.value << 32;
        break;
      case fields::kSitePythonStack:
        stacks |= field.value & 0xffffffffu;
        break;
      case fields::kSiteForwardStack:
        forward = field.value;
        break;
      case fields::kSiteResult:
        site.failed = field.value != 0;
        break;
      case fields::kSiteAddressShift:
        site.shift = static_cast<uint8_t>(field.value & 63);
        break;
      case fields::kSiteFlags:
        site.without_totals = (field.value & kWithoutTotals) != 0;
        break;
      case fields::kSiteSizeVaries:
        site.size_varies = field.value != 0;
        break;
      default:
        break;
    }
  }
  if (reader.failed() || id == 0 || id > kMostSites || site.kind == 0) return false;
  if (sites_.size() <= id && !sites_.Resize(id + 1)) return false;
  *is_new = sites_[id].kind == 0;
  if (!*is_new) return true;
  if (columns::HasTotals(site.kind) && DeviceOf(site.device) == nullptr) return false;
  if (Folds(site.kind)) {
    site.place = PlaceOf(site, static_cast<uint32_t>(id), stacks, forward, api);
    if (site.place == 0) return false;
  }
  sites_[id] = site;
  return true;
}

uint32_t FoldWindow::PlaceOf(const Site& site, uint32_t id, uint64_t stacks, uint64_t forward, uint32_t api) {
  const uint64_t rest = uint64_t{site.kind} << 56 | uint64_t{site.space} << 48 |
                        uint64_t{static_cast<uint16_t>(site.device)} << 32 | api;
  const auto hash_of = [](const Place& place) {
    return Combine(Combine(Mix(place.stacks[0]), place.stacks[1]), place.rest);
  };
  Place place{};
  place.stacks[0] = stacks;
  place.stacks[1] = forward;
  place.rest = rest;
  place.site = id;
  const uint64_t hash = hash_of(place);
  const uint32_t found = place_index_.Find(hash, [&](uint32_t candidate) {
    const Place& other = places_[candidate - 1];
    return other.stacks[0] == stacks && other.stacks[1] == forward && other.rest == rest;
  });
  if (found != 0) return found;
  if (site.kind != columns::kHandleCreate) {
    const bool blocks = site.kind == columns::kBlockAllocate;
    place.book = BookOf(!blocks && InHostMemory(site.space) ? -1 : site.device, blocks);
    if (place.book == 0) return 0;
  }
  if (!places_.Push(place)) return 0;
  const auto number = static_cast<uint32_t>(places_.size());
  if (!place_index_.Insert(hash, number, [&](uint32_t old) { return hash_of(places_[old - 1]); })) return 0;
  return number;
}

uint32_t FoldWindow::BookOf(int32_t device, bool blocks) {
  for (size_t i = 0; i < books_.size(); ++i) {
    if (books_[i].device == device && books_[i].blocks == blocks) return static_cast<uint32_t>(i + 1);
  }
  Book book{};
  book.device = device;
  book.blocks = blocks;
  return books_.Push(book) ? static_cast<uint32_t>(books_.size()) : 0;
}

FoldWindow::Device* FoldWindow::DeviceOf(int32_t ordinal) {
  for (Device& device : devices_) {
    if (device.ordinal == ordinal) return &device;
  }
  Device device{};
  device.ordinal = ordinal;
  return devices_.Push(device) ? &devices_.back() : nullptr;
}

// --- what is alive ---

FoldWindow::Live* FoldWindow::FindLive(uint64_t index) {
  if (live_.empty()) return nullptr;
  const size_t mask = live_.size() - 1;
  for (size_t i = Mix(index) & mask; live_[i].index != kNone; i = (i + 1) & mask) {
    if (live_[i].index == index) return &live_[i];
  }
  return nullptr;
}

bool FoldWindow::InsertLive(const Live& live) {
  if ((live_count_ + 1) * 3 > live_.size() * 2) {
    Array<Live> old;
    old.Swap(live_);
    if (!live_.Resize(old.empty() ? 1024 : old.size() * 2)) {
      live_.Swap(old);
      return false;
    }
    for (Live& slot : live_) slot.index = kNone;
    live_count_ = 0;
    for (const Live& one : old) {
      if (one.index != kNone) InsertLive(one);
    }
  }
  const size_t mask = live_.size() - 1;
  size_t i = Mix(live.index) & mask;
  while (live_[i].index != kNone) i = (i + 1) & mask;
  live_[i] = live;
  ++live_count_;
  return true;
}

void FoldWindow::EraseLive(Live* live) {
  const size_t mask = live_.size() - 1;
  auto hole = static_cast<size_t>(live - live_.data());
  live_[hole].index = kNone;
  --live_count_;
  // Closes the gap, so that no search ends too early.
  for (size_t i = (hole + 1) & mask; live_[i].index != kNone; i = (i + 1) & mask) {
    const size_t home = Mix(live_[i].index) & mask;
    if (((i - home) & mask) < ((i - hole) & mask)) continue;
    live_[hole] = live_[i];
    live_[i].index = kNone;
    hole = i;
  }
}

FoldWindow::Place& FoldWindow::Touch(uint32_t number) {
  Place& place = places_[number - 1];
  if (place.window == window_) return place;
  // Without memory for the list its figures are not written: then the pass fails, see AppendStacks.
  touched_.Push(number);
  place.window = window_;
  place.births = place.born_bytes = place.last_birth = 0;
  place.least_count = place.most_count = place.count;
  place.least_bytes = place.most_bytes = place.bytes;
  return place;
}

void FoldWindow::Born(uint32_t number, uint64_t size, uint64_t index, uint64_t time) {
  Place& place = Touch(number);
  ++place.births;
  place.born_bytes += size;
  place.last_birth = index;
  place.most_count = std::max(place.most_count, ++place.count);
  place.bytes += size;
  place.most_bytes = std::max(place.most_bytes, place.bytes);
  if (place.book == 0) return;
  Book& book = books_[place.book - 1];
  if (!book.touched) {
    book.touched = true;
    book.least = book.bytes;
    book.peak = 0;
  }
  book.bytes += size;
  if (book.bytes > book.peak) {
    book.peak = book.bytes;
    book.peak_index = index;
    book.peak_time = time;
  }
}

void FoldWindow::Died(uint32_t number, uint64_t size) {
  Place& place = Touch(number);
  place.least_count = std::min(place.least_count, --place.count);
  place.bytes -= size;
  place.least_bytes = std::min(place.least_bytes, place.bytes);
  if (place.book == 0) return;
  Book& book = books_[place.book - 1];
  if (!book.touched) {
    book.touched = true;
    book.least = book.bytes;
    book.peak = 0;
  }
  book.bytes -= size;
  book.least = std::min(book.least, book.bytes);
}

// --- events ---

bool FoldWindow::AddEvents(const EventColumns& events, bool folded, bool copy) {
  Varints column[EventColumns::kColumns];
  for (uint32_t i = 0; i < EventColumns::kColumns; ++i) column[i] = Varints(events.data[i].span());
  // An absent column is all zeros.
  const auto next = [&](uint32_t id) { return events.data[id].empty() ? 0 : column[id].Next(); };
  const auto next_signed = [&](uint32_t id) { return events.data[id].empty() ? 0 : column[id].NextZigZag(); };
  if (events.restart) ++epoch_;
  if (events.predicted && !predictor_.ready()) {
    if (!predictions_.Resize(event_prediction::Predictor::kEntries)) return false;
    predictor_.Use(predictions_.data());
  }
  if (events.restart && predictor_.ready()) predictor_.Restart();
  uint64_t index = events.first_index - 1;
  uint64_t time = events.first_time;
  uint64_t sequence = events.first_sequence - 1;
  for (uint32_t i = 0; i < events.count; ++i) {
    uint64_t id = next(kSite);
    event_prediction::Entry expected{};
    if (events.predicted && id == 0) {
      expected = predictor_.Predict();
      id = expected.site;
    }
    if (id == 0 || id >= sites_.size() || sites_[id].kind == 0) return false;
    Site& site = sites_[id];
    if (site.epoch != epoch_) {
      site.epoch = epoch_;
      site.last_address = site.last_size = site.last_argument[0] = site.last_argument[1] = 0;
    }
    Kept event{};
    event.site = static_cast<uint32_t>(id);
    event.index = index += 1 + next(kIndex);
    const auto step =
        static_cast<int64_t>(next_signed(kTime) + static_cast<uint64_t>(int64_t{expected.step}));
    event.time = time += static_cast<uint64_t>(step) * events.time_step;
    event.sequence = sequence += next_signed(kSequence) + 1;
    event.birth = kNone;
    event.size = site.size;
    const bool has_live = columns::HasLive(site.kind);
    uint64_t distance = 0;
    if (has_live) distance = events.predicted ? next_signed(kLive) + expected.distance : next(kLive);
    if (events.predicted) predictor_.Learn(event.site, step, distance);
    Live* birth = nullptr;
    if (distance != 0) {
      event.birth = event.index - distance;
      birth = FindLive(event.birth);
      if (birth == nullptr) return false;
      event.size = birth->size;
      event.address = birth->address;
    }
    if (columns::HasAddress(site.kind) || (has_live && distance == 0)) {
      site.last_address += next_signed(kAddress);
      event.address = site.last_address << site.shift;
    }
    if (site.size_varies || (site.kind == columns::kBlockFree && distance == 0)) {
      site.last_size += next_signed(kSize);
      event.size = site.last_size;
    }
    bool keep = false;
    if (columns::HasTotals(site.kind)) {
      Device* device = DeviceOf(site.device);
      if (device->epoch != epoch_) {
        device->epoch = epoch_;
        device->allocated = device->reserved = 0;
      }
      const uint64_t change = site.kind == columns::kBlockAllocate ? event.size
                              : site.kind == columns::kBlockFree   ? 0 - event.size
                                                                   : 0;
      device->allocated += change + next_signed(kAllocated);
      device->reserved += next_signed(kReserved);
      event.argument[0] = device->allocated;
      event.argument[1] = device->reserved;
      // Where the allocator took or gave memory, the analyses look at the event itself.
      keep = device->reserved != device->true_reserved;
      if (!folded && !copy && !site.without_totals && !device->allocated_unknown) {
        const bool agrees = device->allocated == device->true_allocated + change;
        ++(agrees ? totals_agreed_ : totals_disagreed_);
      }
      device->true_allocated = device->allocated;
      // It counted blocks whose ends are gone.
      device->allocated_unknown = folded;
      device->true_reserved = device->reserved;
    } else {
      event.argument[0] = site.last_argument[0] += next_signed(kArgument0);
      event.argument[1] = site.last_argument[1] += next_signed(kArgument1);
    }

    // The bounds of an earlier window are in its message.
    if (!copy && !folded) {
      if (empty_) {
        first_index_ = event.index;
        first_time_ = event.time;
        first_sequence_ = event.sequence;
        last_time_ = event.time;
        last_sequence_ = event.sequence;
        empty_ = false;
      }
      last_index_ = event.index;
      first_time_ = std::min(first_time_, event.time);
      last_time_ = std::max(last_time_, event.time);
      first_sequence_ = std::min(first_sequence_, event.sequence);
      last_sequence_ = std::max(last_sequence_, event.sequence);
      ++events_;
    }
    if (columns::BeginsObject(site.kind) && !site.failed) {
      if (!copy && !kept_.Push(event)) return false;
      const auto place_in_kept = copy ? 0 : static_cast<uint32_t>(kept_.size());
      if (!InsertLive({event.index, event.address, event.size, event.site, place_in_kept, keep}))
        return false;
      if (site.place != 0) {
        if (!folded) {
          Born(site.place, event.size, event.index, event.time);
        } else if (const uint32_t book = places_[site.place - 1].book; book != 0) {
          books_[book - 1].bytes += event.size;
        }
      }
      continue;
    }
    bool dropped = false;
    if (birth != nullptr && !site.failed) {
      const Site& made = sites_[birth->site];
      if (made.place != 0) {
        if (!folded) {
          Died(made.place, birth->size);
        } else if (const uint32_t book = places_[made.place - 1].book; book != 0) {
          books_[book - 1].bytes -= birth->size;
        }
        if (!copy && birth->kept != 0 && !birth->keep && !keep) {
          kept_[birth->kept - 1].dropped = true;
          ++dropped_;
          gone_ += 2;
          dropped = true;
        }
      }
      EraseLive(birth);
    }
    if (!copy && !dropped && !kept_.Push(event)) return false;
  }
  for (const Varints& one : column) {
    if (one.exhausted()) return false;
  }
  return dropped_ < (size_t{1} << 15) || dropped_ * 2 < kept_.size() || Compact();
}

void FoldWindow::GiveUp() {
  for (const Kept& event : kept_) {
    if (event.dropped) continue;
    if (Live* live = FindLive(event.index)) live->kept = 0;
  }
  kept_.Clear();
  dropped_ = 0;
}

bool FoldWindow::Compact() {
  if (dropped_ == 0) return true;
  size_t out = 0;
  for (const Kept& event : kept_) {
    if (event.dropped) continue;
    kept_[out++] = event;
    const Site& site = sites_[event.site];
    if (!columns::BeginsObject(site.kind) || site.failed) continue;
    if (Live* live = FindLive(event.index)) live->kept = static_cast<uint32_t>(out);
  }
  kept_.Shrink(out);
  dropped_ = 0;
  return true;
}

// --- earlier windows ---

bool FoldWindow::AddFolded(std::span<const uint8_t> message) {
  FieldReader reader(message);
  Field field;
  uint64_t first_index = 0;
  uint64_t first_time = 0;
  uint64_t first_sequence = 0;
  uint64_t last_index = 0;
  uint64_t last_time = 0;
  uint64_t last_sequence = 0;
  uint32_t windows = 0;
  bool end = false;
  while (reader.Next(&field)) {
    switch (field.number) {
      case fields::kFoldedEnd:
        end = field.value != 0;
        break;
      case fields::kFoldedFirstIndex:
        first_index = field.value;
        break;
      case fields::kFoldedLastIndex:
        last_index = field.value;
        break;
      case fields::kFoldedFirstTime:
        first_time = field.value;
        break;
      case fields::kFoldedLastTime:
        last_time = field.value;
        break;
      case fields::kFoldedFirstSequence:
        first_sequence = field.value;
        break;
      case fields::kFoldedLastSequence:
        last_sequence = field.value;
        break;
      case fields::kFoldedWindows:
        windows = static_cast<uint32_t>(field.value);
        break;
      case fields::kFoldedEvents:
        events_ += field.value;
        break;
      case fields::kFoldedEventsDropped:
        gone_ += field.value;
        break;
      case fields::kFoldedTotalsAgreed:
        totals_agreed_ += field.value;
        break;
      case fields::kFoldedTotalsDisagreed:
        totals_disagreed_ += field.value;
        break;
      case fields::kFoldedPeak: {
        int32_t device = 0;
        bool blocks = false;
        Book peak{};
        FieldReader part(field.bytes);
        Field one;
        while (part.Next(&one)) {
          if (one.number == fields::kFoldedPeakDevice) device = static_cast<int32_t>(one.Signed());
          if (one.number == fields::kFoldedPeakBlocks) blocks = one.value != 0;
          if (one.number == fields::kFoldedPeakBytes) peak.peak = one.value;
          if (one.number == fields::kFoldedPeakIndex) peak.peak_index = one.value;
          if (one.number == fields::kFoldedPeakTime) peak.peak_time = one.value;
          if (one.number == fields::kFoldedPeakLeastBytes) peak.least = one.value;
        }
        const uint32_t number = BookOf(device, blocks);
        if (part.failed() || number == 0) return false;
        Book& book = books_[number - 1];
        if (!book.touched || peak.peak > book.peak) {
          book.peak = peak.peak;
          book.peak_index = peak.peak_index;
          book.peak_time = peak.peak_time;
        }
        book.least = book.touched ? std::min(book.least, peak.least) : peak.least;
        book.touched = true;
        break;
      }
      default:
        break;
    }
  }
  if (reader.failed()) return false;
  if (empty_) {
    first_index_ = first_index;
    first_time_ = first_time;
    first_sequence_ = first_sequence;
    last_time_ = last_time;
    last_sequence_ = last_sequence;
    empty_ = false;
  }
  last_index_ = last_index;
  first_time_ = std::min(first_time_, first_time);
  last_time_ = std::max(last_time_, last_time);
  first_sequence_ = std::min(first_sequence_, first_sequence);
  last_sequence_ = std::max(last_sequence_, last_sequence);
  if (end) windows_ += windows;
  return true;
}

bool FoldWindow::AddStacks(std::span<const uint8_t> stacks) {
  Varints list[11];
  FieldReader reader(stacks);
  Field field;
  while (reader.Next(&field)) {
    if (field.number < 11) list[field.number] = Varints(field.bytes);
  }
  if (reader.failed()) return false;
  while (!list[fields::kFoldedStacksSite].done()) {
    const uint64_t id = list[fields::kFoldedStacksSite].Next();
    if (id == 0 || id >= sites_.size() || sites_[id].place == 0) return false;
    Place& place = Touch(sites_[id].place);
    place.births += list[fields::kFoldedStacksBirths].Next();
    place.born_bytes += list[fields::kFoldedStacksBornBytes].Next();
    place.least_count = std::min(place.least_count, list[fields::kFoldedStacksLeastCount].Next());
    place.most_count = std::max(place.most_count, list[fields::kFoldedStacksMostCount].Next());
    place.least_bytes = std::min(place.least_bytes, list[fields::kFoldedStacksLeastBytes].Next());
    place.most_bytes = std::max(place.most_bytes, list[fields::kFoldedStacksMostBytes].Next());
    place.count = list[fields::kFoldedStacksCount].Next();
    place.bytes = list[fields::kFoldedStacksBytes].Next();
    const uint64_t last_birth = list[fields::kFoldedStacksLastBirth].Next();
    if (last_birth != 0) place.last_birth = last_index_ + 1 - last_birth;
  }
  for (const Varints& one : list) {
    if (one.exhausted()) return false;
  }
  return true;
}

// --- writing ---

void FoldWindow::AppendFolded(ByteBuffer& folded) const {
  ProtoWriter message(folded);
  message.add_uint64(fields::kFoldedFirstIndex, first_index_);
  message.add_uint64(fields::kFoldedLastIndex, last_index_);
  message.add_uint64(fields::kFoldedFirstTime, first_time_);
  message.add_uint64(fields::kFoldedLastTime, last_time_);
  message.add_uint64(fields::kFoldedFirstSequence, first_sequence_);
  message.add_uint64(fields::kFoldedLastSequence, last_sequence_);
  message.add_uint32(fields::kFoldedWindows, std::max(windows_, 1u));
}

void FoldWindow::AppendEnd(ByteBuffer& folded) {
  ProtoWriter message(folded);
  message.add_uint64(fields::kFoldedEvents, events_);
  message.add_uint64(fields::kFoldedEventsDropped, gone_);
  message.add_uint64(fields::kFoldedTotalsAgreed, totals_agreed_);
  if (totals_disagreed_ != 0) message.add_uint64(fields::kFoldedTotalsDisagreed, totals_disagreed_);
  for (const Book& book : books_) {
    if (!book.touched) continue;
    part_.Clear();
    ProtoWriter peak(part_);
    peak.add_sint32(fields::kFoldedPeakDevice, book.device);
    if (book.blocks) peak.add_bool(fields::kFoldedPeakBlocks, true);
    peak.add_uint64(fields::kFoldedPeakBytes, book.peak);
    peak.add_uint64(fields::kFoldedPeakIndex, book.peak_index);
    peak.add_uint64(fields::kFoldedPeakTime, book.peak_time);
    peak.add_uint64(fields::kFoldedPeakLeastBytes, book.least);
    message.add_message(fields::kFoldedPeak, Chars(part_), part_.size());
  }
}

bool FoldWindow::AppendStacks(size_t* from, size_t most, ByteBuffer& stacks) {
  const size_t end = std::min(touched_.size(), *from + most);
  if (*from >= end) return false;
  const auto list = [&](uint32_t field, auto value_of) {
    part_.Clear();
    for (size_t i = *from; i < end; ++i) part_.Varint(value_of(places_[touched_[i] - 1]));
    ProtoWriter(stacks).add_bytes(field, Chars(part_), part_.size());
  };
  list(fields::kFoldedStacksSite, [](const Place& place) -> uint64_t { return place.site; });
  list(fields::kFoldedStacksBirths, [](const Place& place) { return place.births; });
  list(fields::kFoldedStacksBornBytes, [](const Place& place) { return place.born_bytes; });
  list(fields::kFoldedStacksLeastCount, [](const Place& place) { return place.least_count; });
  list(fields::kFoldedStacksMostCount, [](const Place& place) { return place.most_count; });
  list(fields::kFoldedStacksLeastBytes, [](const Place& place) { return place.least_bytes; });
  list(fields::kFoldedStacksMostBytes, [](const Place& place) { return place.most_bytes; });
  list(fields::kFoldedStacksCount, [](const Place& place) { return place.count; });
  list(fields::kFoldedStacksBytes, [](const Place& place) { return place.bytes; });
  list(fields::kFoldedStacksLastBirth,
       [&](const Place& place) { return place.births == 0 ? 0 : last_index_ + 1 - place.last_birth; });
  *from = end;
  return true;
}

bool FoldWindow::AppendEvents(size_t* from, size_t most_bytes, Compressor& compressor, ByteBuffer& out) {
  if (*from >= kept_.size()) return false;
  bool not_zero[EventColumns::kColumns] = {};
  for (ByteBuffer& column : columns_) column.Clear();
  size_t bytes = 0;
  const auto put = [&](uint32_t id, uint64_t value) {
    const size_t before = columns_[id].size();
    columns_[id].Varint(value);
    bytes += columns_[id].size() - before;
    not_zero[id] |= value != 0;
  };
  ++written_epoch_;
  uint32_t count = 0;
  const uint64_t first_index = kept_[*from].index;
  const uint64_t first_time = kept_[*from].time;
  const uint64_t first_sequence = kept_[*from].sequence;
  uint64_t index = first_index - 1;
  uint64_t time = first_time;
  uint64_t sequence = first_sequence - 1;
  for (; *from < kept_.size() && bytes < most_bytes; ++*from) {
    const Kept& event = kept_[*from];
    if (event.dropped) continue;
    Site& site = sites_[event.site];
    if (site.written == 0) {
      // Without memory the events do not end, and the stretch is copied: see Folder::EndStep.
      if (!written_.Push({})) return false;
      site.written = static_cast<uint32_t>(written_.size());
    }
    Written& written = written_[site.written - 1];
    if (written.epoch != written_epoch_) {
      written = {};
      written.epoch = written_epoch_;
    }
    put(kSite, event.site);
    put(kIndex, event.index - index - 1);
    put(kTime, ZigZag(static_cast<int64_t>(event.time - time)));
    put(kSequence, ZigZag(static_cast<int64_t>(event.sequence - sequence - 1)));
    index = event.index;
    time = event.time;
    sequence = event.sequence;
    const bool has_live = columns::HasLive(site.kind);
    const bool known = event.birth != kNone;
    if (has_live) put(kLive, known ? event.index - event.birth : 0);
    if (columns::HasAddress(site.kind) || (has_live && !known)) {
      const uint64_t address = event.address >> site.shift;
      put(kAddress, ZigZag(static_cast<int64_t>(address - written.address)));
      written.address = address;
    }
    if (site.size_varies || (site.kind == columns::kBlockFree && !known)) {
      put(kSize, ZigZag(static_cast<int64_t>(event.size - written.size)));
      written.size = event.size;
    }
    if (columns::HasTotals(site.kind)) {
      Device* device = DeviceOf(site.device);
      if (device->written_epoch != written_epoch_) {
        device->written_epoch = written_epoch_;
        device->written_allocated = device->written_reserved = 0;
      }
      const uint64_t change = site.kind == columns::kBlockAllocate ? event.size
                              : site.kind == columns::kBlockFree   ? 0 - event.size
                                                                   : 0;
      put(kAllocated, ZigZag(static_cast<int64_t>(event.argument[0] - (device->written_allocated + change))));
      put(kReserved, ZigZag(static_cast<int64_t>(event.argument[1] - device->written_reserved)));
      device->written_allocated = event.argument[0];
      device->written_reserved = event.argument[1];
    } else {
      for (unsigned i = 0; i < 2; ++i) {
        put(i == 0 ? kArgument0 : kArgument1,
            ZigZag(static_cast<int64_t>(event.argument[i] - written.argument[i])));
        written.argument[i] = event.argument[i];
      }
    }
    ++count;
  }
  ProtoWriter message(out);
  message.add_uint32(fields::kEventsCount, count);
  message.add_uint64(fields::kEventsFirstIndex, first_index);
  message.add_uint64(fields::kEventsFirstTime, first_time);
  message.add_uint64(fields::kEventsFirstSequence, first_sequence);
  message.add_bool(fields::kEventsRestart, true);
  for (uint32_t id = 1; id < EventColumns::kColumns; ++id) {
    if (!not_zero[id]) continue;
    const ByteBuffer& column = columns_[id];
    const bool smaller = column.size() >= kLeastCompressed && compressor.Compress(column.span(), compressed_);
    const ByteBuffer& data = smaller ? compressed_ : column;
    part_.Clear();
    ProtoWriter part(part_);
    part.add_enum(fields::kColumnId, static_cast<int32_t>(id));
    if (smaller) part.add_enum(fields::kColumnCodec, fields::kCodecZstd);
    part.add_uint32(fields::kColumnRawSize, static_cast<uint32_t>(column.size()));
    part.add_bytes(fields::kColumnData, Chars(data), data.size());
    message.add_message(fields::kEventsColumn, Chars(part_), part_.size());
  }
  return true;
}

void FoldWindow::Next() {
  // What they made is in an earlier window from now on.
  GiveUp();
  touched_.Clear();
  ++window_;
  for (Book& book : books_) book.touched = false;
  empty_ = true;
  windows_ = 0;
  events_ = gone_ = totals_agreed_ = totals_disagreed_ = 0;
}

}  // namespace gpumemtrace::recorder
