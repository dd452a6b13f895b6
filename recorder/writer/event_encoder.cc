#include "recorder/writer/event_encoder.h"

#include <string.h>

#include <iterator>

#include "proto/gpumemtrace/event_columns.h"
#include "recorder/event.h"
#include "recorder/memory/pages.h"
#include "recorder/writer/fields.h"

namespace gpumemtrace::recorder {
namespace {

namespace columns = event_columns;

// With more sites than this a new size makes none at all, so that they stay bounded by the stacks.
constexpr size_t kManySites = size_t{1} << 18;
// PyTorch's caching allocator rounds blocks to 512 bytes (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize).
constexpr uint8_t kBlockShift = address_prediction::kShift;
constexpr int32_t kMostDevices = 4096;
constexpr size_t kMostClasses = (size_t{1} << 31) - 1;

// Of the bytes of a steady loop's event three quarters were its time at 1 µs, mostly noise. What happened
// when is told by the sequence number; the time serves to find phases and rates.
constexpr uint64_t kTimeStepUs = 4;

constexpr size_t kPredictionBytes = event_prediction::Predictor::kEntries * sizeof(event_prediction::Entry);

// Columns shorter than this are not worth a zstd frame.
constexpr size_t kLeastCompressed = 48;

}  // namespace

uint64_t EventEncoder::Class::Hash() const {
  const uint64_t hash = Combine(Mix(stream), uint64_t{thread} << 32 | static_cast<uint32_t>(result));
  return Combine(hash, uint64_t{static_cast<uint16_t>(device)} << 48 | uint64_t{api} << 32 |
                           uint64_t{flags} << 16 | uint64_t{space} << 8 | uint64_t{kind} << 1 | shifted);
}

uint64_t EventEncoder::SiteKey::Hash() const {
  const uint64_t hash = Combine(Mix(size()), uint64_t{native_stack} << 32 | python_stack);
  return Combine(hash, uint64_t{forward_stack} << 32 | uint64_t{number_of_class} << 1 | size_varies);
}

uint32_t EventEncoder::FindClass(const Class& of) {
  uint32_t& last = last_classes_[(of.kind ^ of.api) % std::size(last_classes_)];
  if (last != 0 && classes_[last - 1] == of) return last;
  const uint64_t hash = of.Hash();
  uint32_t id = class_index_.Find(hash, [&](uint32_t candidate) { return classes_[candidate - 1] == of; });
  if (id == 0) {
    if (classes_.size() == kMostClasses || !classes_.Push(of)) return 0;
    id = static_cast<uint32_t>(classes_.size());
    if (!class_index_.Insert(hash, id, [&](uint32_t old) { return classes_[old - 1].Hash(); })) return 0;
  }
  return last = id;
}

bool EventEncoder::HasMore(State& state) {
  if (state.more != 0) return true;
  if (!more_.Push({})) return false;
  state.more = static_cast<uint32_t>(more_.size());
  return true;
}

uint32_t EventEncoder::FindSite(SiteKey key, uint32_t expected) {
  // Nearly always right, and cheaper than to hash the key.
  if (expected != 0 && sites_[expected - 1].key == key) return expected;
  if (key.size() != 0) {
    // A stack that asks for other sizes again and again sends the size with each event: a site costs about
    // ten bytes once, a size two or three bytes each time; and with one site what comes next can be
    // predicted.
    SiteKey varying = key;
    varying.set_size(0);
    varying.size_varies = 1;
    if (expected != 0 && sites_[expected - 1].key == varying) return expected;
    if (size_counts_.Vary(varying.Hash())) key = varying;
  }
  for (;;) {
    const uint64_t hash = key.Hash();
    uint32_t id =
        site_index_.Find(hash, [&](uint32_t candidate) { return sites_[candidate - 1].key == key; });
    if (id == 0) {
      if (key.size() != 0) {
        SiteKey varying = key;
        varying.set_size(0);
        varying.size_varies = 1;
        if (size_counts_.Add(varying.Hash(), next_index_) || sites_.size() >= kManySites) {
          key = varying;
          continue;
        }
      }
      Site site{};
      site.key = key;
      if (!sites_.Push(site)) return 0;
      id = static_cast<uint32_t>(sites_.size());
      if (!site_index_.Insert(hash, id, [&](uint32_t old) { return sites_[old - 1].key.Hash(); })) return 0;
    }
    if (StateOf(id) == nullptr) {
      if (!states_.Push({0, id, 0})) return 0;
      sites_[id - 1].state = static_cast<uint32_t>(states_.size() - 1);
      DefineSite(id, key);
    }
    return id;
  }
}

void EventEncoder::DefineSite(uint32_t id, const SiteKey& key) {
  const Class& of = classes_[key.number_of_class - 1];
  const char* api = of.api < api_names_.size() ? api_names_[of.api] : "";
  const uint32_t api_id = dictionary_.String({api, strlen(api)});
  message_.Clear();
  ProtoWriter message(message_);
  message.add_uint32(fields::kSiteId, id);
  message.add_enum(fields::kSiteKind, of.kind);
  if (of.space != 0) message.add_enum(fields::kSiteSpace, of.space);
  if (api_id != 0) message.add_uint32(fields::kSiteApi, api_id);
  if (of.device != 0) message.add_sint32(fields::kSiteDevice, of.device);
  if (of.thread != 0) message.add_uint32(fields::kSiteThread, of.thread);
  if (of.stream != 0) message.add_uint64(fields::kSiteStream, of.stream);
  if (key.size() != 0) message.add_uint64(fields::kSiteSize, key.size());
  if (key.native_stack != 0) message.add_uint32(fields::kSiteNativeStack, key.native_stack);
  if (key.python_stack != 0) message.add_uint32(fields::kSitePythonStack, key.python_stack);
  if (key.forward_stack != 0) message.add_uint32(fields::kSiteForwardStack, key.forward_stack);
  if (of.result != 0) message.add_sint32(fields::kSiteResult, of.result);
  if (of.shifted != 0) message.add_uint32(fields::kSiteAddressShift, kBlockShift);
  if (of.flags != 0) message.add_uint32(fields::kSiteFlags, of.flags);
  if (key.size_varies != 0) message.add_bool(fields::kSiteSizeVaries, true);
  ProtoWriter(dictionary_.pending_sites())
      .add_message(fields::kContentSite, reinterpret_cast<const char*>(message_.data()), message_.size());
}

void EventEncoder::Begin(bool restart) {
  restart_ = restart;
  if (restart) {
    ++restarts_;
    more_.Clear();
    states_.Clear();
    unpaired_ = 0;
    restart_index_ = next_index_;
    PreparePrediction();
  } else if (predicts_addresses_) {
    predicts_addresses_ = address_trial_.GoesOn();
  }
  count_ = 0;
  first_index_ = next_index_;
  for (ByteBuffer& column : columns_) column.Clear();
  bytes_ = 0;
  memset(not_zero_, 0, sizeof not_zero_);
}

EventEncoder::~EventEncoder() {
  UnmapPages(predictions_, kPredictionBytes);
  UnmapPages(address_tables_, sizeof *address_tables_);
}

void EventEncoder::PreparePrediction() {
  if (predictions_ == nullptr) {
    predictions_ = static_cast<event_prediction::Entry*>(MapPages(kPredictionBytes));
    predictor_.Use(predictions_);
  }
  predicts_ = predictor_.ready();
  if (predicts_) predictor_.Restart();
  if (address_tables_ == nullptr) {
    address_tables_ = static_cast<address_prediction::Tables*>(MapPages(sizeof *address_tables_));
    addresses_.Use(address_tables_);
  }
  predicts_addresses_ = addresses_.ready() && address_trial_.Restart(next_index_);
  if (predicts_addresses_) addresses_.Restart(next_index_);
}

bool EventEncoder::Add(const ring_file::EventRecord& event, uint32_t thread) {
  uint64_t optional[5] = {};
  const auto* words = reinterpret_cast<const uint64_t*>(&event + 1);
  for (unsigned i = 0; i < 5; ++i) {
    if ((event.present >> i & 1) != 0) optional[i] = *words++;
  }
  const uint32_t kind = event.header.detail;
  const bool failed = (event.header.flags & kFailed) != 0;
  const StackIds stack = dictionary_.FindStack(event.stack);

  const bool block = columns::HasTotals(kind);
  constexpr uint64_t kBlockMask = (uint64_t{1} << kBlockShift) - 1;
  const bool shifted = block && (event.address & kBlockMask) == 0;
  Class of{};
  of.stream = optional[2];
  of.thread = thread;
  of.result = static_cast<int32_t>(optional[4]);
  of.device = event.device;
  of.api = event.api;
  of.flags = event.header.flags;
  of.space = event.space;
  of.kind = static_cast<uint8_t>(kind) & 63;
  of.shifted = shifted;
  const uint32_t number_of_class = FindClass(of);
  if (number_of_class == 0 || kind != of.kind) return false;
  SiteKey key{};
  key.set_size(event.size);
  key.native_stack = stack.native;
  key.python_stack = stack.python;
  key.forward_stack = dictionary_.FindStack(optional[3]).python;
  key.number_of_class = number_of_class & kMostClasses;
  if (event.device < -1 || event.device >= kMostDevices) return false;
  if (block && !devices_.Resize(std::max<size_t>(devices_.size(), static_cast<size_t>(event.device) + 2))) {
    return false;
  }

  LiveObject birth{};
  bool known = false;
  if (columns::HasLive(kind) && !failed) {
    known = live_.Take(columns::BirthOf(kind), event.address, event.sequence, &birth);
  }
  const bool releases = kind == static_cast<uint32_t>(EventKind::kPhysicalRelease) && !failed;
  LiveObject physical{};
  if (known && birth.tag != 0) books_[birth.tag - 1].bytes -= birth.size;
  if (releases &&
      live_.Take(static_cast<uint32_t>(EventKind::kPhysicalCreate), event.address, event.sequence,
                 &physical) &&
      physical.tag != 0) {
    books_[physical.tag - 1].bytes -= physical.size;
  }
  if (kind == columns::kBlockFree) {
    // The size of its birth, or an entry of its own: see event_columns.h.
    key.set_size(0);
    key.size_varies = known && birth.size != event.size;
  }

  event_prediction::Entry expected{};
  if (predicts_) expected = predictor_.Predict();
  const uint32_t id = FindSite(key, expected.site);
  if (id == 0) return false;
  State* const of_site = StateOf(id);
  if (of_site == nullptr) return false;
  State& state = *of_site;
  const bool has_size = sites_[id - 1].key.size_varies != 0 || (kind == columns::kBlockFree && !known);
  if ((!block || has_size) && !HasMore(state)) return false;
  const bool begins =
      columns::BeginsObject(kind) || kind == static_cast<uint32_t>(EventKind::kPhysicalCreate);
  if (begins && !failed) {
    const uint32_t number = BookOf(of);
    live_.Insert({event.address, next_index_, event.sequence, event.size, static_cast<uint16_t>(kind),
                  static_cast<uint16_t>(number)});
    if (number != 0) {
      Book& book = books_[number - 1];
      book.bytes += event.size;
      if (book.bytes > book.peak) {
        book.peak = book.bytes;
        book.peak_index = next_index_;
      }
    }
  }

  const uint64_t time = event.time_ns / (1000 * kTimeStepUs);
  if (count_ == 0) {
    first_time_ = last_time_ = time;
    first_sequence_ = event.sequence;
    last_sequence_ = event.sequence - 1;
  }
  const auto step = static_cast<int64_t>(time - last_time_);
  const uint64_t distance = columns::HasLive(kind) && known ? next_index_ - birth.index : 0;
  if (expected.site != id) expected = {};
  if (predicts_) predictor_.Learn(id, step, distance);
  Put(kSite, expected.site == id ? 0 : id);
  Put(kTime, ZigZag(step - expected.step));
  Put(kSequence, ZigZag(static_cast<int64_t>(event.sequence - last_sequence_ - 1)));
  last_time_ = time;
  last_sequence_ = event.sequence;

  if (columns::HasLive(kind)) {
    Put(kLive, predicts_ ? ZigZag(static_cast<int64_t>(distance - expected.distance)) : distance);
  }
  const unsigned shift = shifted ? kBlockShift : 0;
  const uint8_t lane = address_prediction::LaneOf(optional[2]);
  const bool placed = predicts_addresses_ && kind == columns::kBlockAllocate &&
                      address_prediction::Follows(shift, 0, event.size);
  if (predicts_addresses_ && kind == columns::kBlockFree && known && addresses_.Knows(birth.index) &&
      address_prediction::Follows(shift, birth.address, birth.size)) {
    addresses_.Freed(event.device, lane, birth.address >> address_prediction::kShift, birth.size);
  }
  if (columns::HasAddress(kind) || (columns::HasLive(kind) && !known)) {
    const uint64_t address = event.address >> shift;
    const uint64_t expected_address =
        placed ? addresses_.Predict(event.device, lane, event.size, state.last_address) : state.last_address;
    const uint64_t entry = ZigZag(static_cast<int64_t>(address - expected_address));
    Put(kAddress, entry);
    if (placed) address_trial_.Add(entry, ZigZag(static_cast<int64_t>(address - state.last_address)));
    state.last_address = address;
  }
  if (has_size) {
    More& more = more_[state.more - 1];
    Put(kSize, ZigZag(static_cast<int64_t>(event.size - more.last_size)));
    more.last_size = event.size;
  }
  if (block) {
    DeviceTotals& totals = devices_[static_cast<size_t>(event.device + 1)];
    if (totals.restart != restarts_) totals = {restarts_, 0, 0};
    const uint64_t change = kind == columns::kBlockAllocate ? event.size
                            : kind == columns::kBlockFree   ? 0 - event.size
                                                            : 0;
    Put(kAllocated, ZigZag(static_cast<int64_t>(optional[0] - (totals.allocated + change))));
    Put(kReserved, ZigZag(static_cast<int64_t>(optional[1] - totals.reserved)));
    if (placed) {
      addresses_.Allocated(event.address >> address_prediction::kShift, event.size,
                           totals.reserved != 0 ? optional[1] - totals.reserved : 0);
    }
    totals.allocated = optional[0];
    totals.reserved = optional[1];
    if (kind == columns::kBlockAllocate && !failed) {
      ++live_blocks_;
      live_block_bytes_ += event.size;
    } else if (known && kind == columns::kBlockFree) {
      --live_blocks_;
      live_block_bytes_ -= birth.size;
    }
  } else {
    uint64_t* last = more_[state.more - 1].last_argument;
    for (unsigned i = 0; i < 2; ++i) {
      Put(i == 0 ? kArgument0 : kArgument1, ZigZag(static_cast<int64_t>(optional[i] - last[i])));
      last[i] = optional[i];
    }
  }
  if (known && birth.index >= restart_index_) {
    --unpaired_;
  } else {
    ++unpaired_;
  }
  ++count_;
  ++next_index_;
  return true;
}

void EventEncoder::Finish(Compressor& compressor, ByteBuffer& out) {
  if (count_ == 0) return;
  message_.Clear();
  ProtoWriter message(message_);
  message.add_uint32(fields::kEventsCount, count_);
  message.add_uint64(fields::kEventsFirstIndex, first_index_);
  message.add_uint64(fields::kEventsFirstTime, first_time_ * kTimeStepUs);
  message.add_uint64(fields::kEventsFirstSequence, first_sequence_);
  if (restart_) message.add_bool(fields::kEventsRestart, true);
  if (predicts_) message.add_bool(fields::kEventsPredicted, true);
  message.add_uint32(fields::kEventsTimeStep, kTimeStepUs);
  if (predicts_addresses_) message.add_bool(fields::kEventsAddressesPredicted, true);
  for (uint32_t id = 1; id < kEventColumns; ++id) {
    const ByteBuffer& column = columns_[id];
    if (!not_zero_[id]) continue;
    column_message_.Clear();
    ProtoWriter part(column_message_);
    part.add_enum(fields::kColumnId, static_cast<int32_t>(id));
    const bool smaller = column.size() >= kLeastCompressed && compressor.Compress(column.span(), compressed_);
    const ByteBuffer& data = smaller ? compressed_ : column;
    if (smaller) part.add_enum(fields::kColumnCodec, fields::kCodecZstd);
    part.add_uint32(fields::kColumnRawSize, static_cast<uint32_t>(column.size()));
    part.add_bytes(fields::kColumnData, reinterpret_cast<const char*>(data.data()), data.size());
    message.add_message(fields::kEventsColumn, reinterpret_cast<const char*>(column_message_.data()),
                        column_message_.size());
  }
  ProtoWriter(out).add_message(fields::kContentEvents, reinterpret_cast<const char*>(message_.data()),
                               message_.size());
}

uint32_t EventEncoder::BookOf(const Class& of) {
  const auto kind = static_cast<EventKind>(of.kind);
  const bool blocks = kind == EventKind::kBlockAllocate;
  if (!blocks && kind != EventKind::kAllocate && kind != EventKind::kPhysicalCreate) return 0;
  const auto space = static_cast<Space>(of.space);
  const bool host = !blocks && (space == Space::kPinnedHost || space == Space::kRegisteredHost ||
                                space == Space::kHostPool);
  const int32_t device = host ? -1 : of.device;
  for (size_t i = 0; i < books_.size(); ++i) {
    if (books_[i].device == device && books_[i].blocks == blocks) return static_cast<uint32_t>(i + 1);
  }
  if (books_.size() == UINT16_MAX) return 0;
  return books_.Push({device, blocks, 0, 0, 0}) ? static_cast<uint32_t>(books_.size()) : 0;
}

void EventEncoder::HighestMoments(Array<uint64_t>& indices) const {
  indices.Clear();
  for (const Book& book : books_) {
    if (book.peak != 0) indices.Push(book.peak_index);
  }
}

void EventEncoder::Discard() {
  live_.ForgetFrom(first_index_);
  // What is known to be alive is what counts from here on.
  for (Book& book : books_) book.bytes = 0;
  live_.ForEach([this](const LiveObject& object) {
    if (object.tag != 0) books_[object.tag - 1].bytes += object.size;
  });
  next_index_ = first_index_;
  count_ = 0;
}

}  // namespace gpumemtrace::recorder
