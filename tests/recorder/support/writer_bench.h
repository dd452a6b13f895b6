// A writer with rings and a file but without a session: tests put records into the rings by hand and decide
// when the writer drains.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "recorder/event.h"
#include "recorder/file/trace_file.h"
#include "recorder/memory/pages.h"
#include "recorder/rings/ring_memory.h"
#include "recorder/rings/ring_table.h"
#include "recorder/system.h"
#include "recorder/writer/writer.h"
#include "tests/recorder/support/trace_decoder.h"

namespace gpumemtrace::tests {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "gpumemtrace-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Threads that do nothing but own rings: a ring belongs to a thread that exists.
class Owners {
 public:
  ~Owners() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  recorder::ThreadSlot* Add(recorder::RingTable& table) {
    recorder::ThreadSlot* slot = nullptr;
    bool ready = false;
    threads_.emplace_back([&] {
      std::unique_lock lock(mutex_);
      slot = table.Acquire(recorder::sys::ThreadId());
      ready = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return done_; });
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ready; });
    return slot;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::vector<std::thread> threads_;
};

inline constexpr const char* kApiNames[] = {"", "cudaMalloc", "cudaFree", "c10::allocate"};

class WriterBench {
 public:
  explicit WriterBench(recorder::RingPlace place = recorder::RingPlace::kPrivate,
                       recorder::FileLayer& layer = recorder::SystemFileLayer(),
                       uint64_t capacity = uint64_t{256} << 10)
      : file(layer) {
    now_ns = 1'000'000'000;
    path = folder / "trace.pb";
    EXPECT_EQ(file.Create(path.c_str()), 0);
    recorder::RingMemoryOptions options;
    options.place = place;
    options.capacity = capacity;
    options.trace_path = path.c_str();
    options.ring_key = 0x1122334455667788;
    options.boot_id = "boot";
    options.api_names = kApiNames;
    options.shared_memory_folder = folder.path().c_str();
    memory.Create(options);
    table = std::make_unique<recorder::RingTable>(memory);
    writer = std::make_unique<recorder::Writer>(
        recorder::Writer::Context{file, *table, losses, next_sequence, kApiNames,
                                  [] { return now_ns.load(); }, [] { return uint64_t{4096}; }});
    recorder::ByteBuffer header;
    recorder::ProtoWriter message(header);
    message.add_uint32(1, 4);
    message.add_fixed64(14, options.ring_key);
    EXPECT_EQ(writer->Start(header.span()), 0);
  }

  // A ring of a thread with this (made up) id.
  recorder::ThreadSlot& NewThread(uint64_t tid, const char* name) {
    recorder::ThreadSlot* slot = owners.Add(*table);
    auto* record = New<ring_file::ThreadRecord>(*slot, ring_file::RecordKind::kThread, 0);
    record->tid = tid;
    std::strncpy(record->name, name, sizeof record->name - 1);
    slot->ring.Publish();
    return *slot;
  }

  template <typename Record>
  Record* New(recorder::ThreadSlot& slot, ring_file::RecordKind kind, size_t variable) {
    const size_t bytes = ring_file::RecordBytes(sizeof(Record), variable);
    void* memory_for_record = slot.ring.Reserve(bytes);
    if (memory_for_record == nullptr) return nullptr;
    std::memset(memory_for_record, 0, bytes);
    auto* record = static_cast<Record*>(memory_for_record);
    record->header = {static_cast<uint32_t>(bytes), kind, 0, 0};
    return record;
  }

  // False when the ring is full.
  bool Put(recorder::ThreadSlot& slot, const recorder::Event& event, uint64_t time_ns, uint64_t stack = 0) {
    const uint64_t optional[] = {event.argument[0], event.argument[1], event.stream, event.forward_stack,
                                 static_cast<uint64_t>(int64_t{event.result})};
    size_t count = 0;
    for (const uint64_t word : optional) count += word != 0;
    auto* record = New<ring_file::EventRecord>(slot, ring_file::RecordKind::kEvent, count * 8);
    if (record == nullptr) return false;
    record->header.detail = static_cast<uint8_t>(event.kind);
    record->header.flags = event.flags;
    record->space = static_cast<uint8_t>(event.space);
    record->api = event.api;
    record->device = event.device;
    record->sequence = event.sequence;
    record->time_ns = time_ns;
    record->stack = stack;
    record->address = event.address;
    record->size = event.size;
    auto* word = reinterpret_cast<uint64_t*>(record + 1);
    for (unsigned i = 0; i < 5; ++i) {
      if (optional[i] == 0) continue;
      record->present = static_cast<uint8_t>(record->present | 1u << i);
      *word++ = optional[i];
    }
    slot.ring.Publish();
    uint64_t next = next_sequence.load();
    while (next <= event.sequence && !next_sequence.compare_exchange_weak(next, event.sequence + 1)) {
    }
    return true;
  }

  DecodedTrace Decode() {
    std::string error;
    auto trace = DecodeTrace(ReadFileBytes(path), &error);
    EXPECT_TRUE(trace.has_value()) << error;
    return trace.value_or(DecodedTrace{});
  }
  DecodedTrace DecodeWithRings() {
    std::string error;
    auto trace = DecodeTraceWithRings(ReadFileBytes(path), ReadFileBytes(memory.path()), &error);
    EXPECT_TRUE(trace.has_value()) << error;
    return trace.value_or(DecodedTrace{});
  }

  TemporaryFolder folder;
  std::string path;
  recorder::TraceFile file;
  recorder::RingMemory memory;
  std::unique_ptr<recorder::RingTable> table;
  recorder::Losses losses;
  std::atomic<uint64_t> next_sequence{1};
  std::unique_ptr<recorder::Writer> writer;
  static inline std::atomic<uint64_t> now_ns{0};
  Owners owners;
};

}  // namespace gpumemtrace::tests
