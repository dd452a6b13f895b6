// Stream-ordered allocation and memory pools. A call on a stream that is being captured makes a graph node
// and no memory. A free is logically done at the call; when the pool reuses the bytes is stream-ordered.
#include <cuda.h>

#include <atomic>

#include "interpose/driver/graph_memory.h"
#include "interpose/driver/wrappers.h"
#include "interpose/handle_map.h"

namespace gpumemtrace::interpose::driver {
namespace {

// What is known of a pool: its device (−1 = host) and the sort of memory it gives.
struct PoolFacts {
  int device = -1;
  Space space = Space::kStreamOrdered;
};

// Pools are few; one that does not fit is treated like the device's default pool.
constinit HandleMap<1024> pools;

uint64_t Pack(const PoolFacts& facts) {
  return static_cast<uint64_t>(static_cast<uint32_t>(facts.device)) << 8 | static_cast<uint64_t>(facts.space);
}

bool FindPool(void* pool, PoolFacts* facts) {
  uint64_t packed = 0;
  if (pool == nullptr || !pools.Get(reinterpret_cast<uint64_t>(pool), &packed)) {
    return false;
  }
  facts->device = static_cast<int>(static_cast<uint32_t>(packed >> 8));
  facts->space = static_cast<Space>(packed & 0xff);
  return true;
}

PoolFacts FactsOf(const CUmemPoolProps* props) {
  PoolFacts facts;
  if (props == nullptr) {
    return facts;
  }
  // Values of CUmemLocationType; 11.2 knows only DEVICE, 13.0 has host pools and managed ones.
  const int location = static_cast<int>(props->location.type);
  constexpr int kDeviceLocation = 1;     // CU_MEM_LOCATION_TYPE_DEVICE
  constexpr int kManagedAllocation = 2;  // CU_MEM_ALLOCATION_TYPE_MANAGED, 13.0
  if (location == kDeviceLocation) {
    facts.device = props->location.id;
  } else {
    facts.space = Space::kHostPool;
  }
  if (static_cast<int>(props->allocType) == kManagedAllocation) {
    facts.space = Space::kManaged;
  }
  return facts;
}

uint64_t CurrentPool(int device) {
  const DriverFunctions& functions = Driver();
  void* pool = nullptr;
  if (device < 0 || functions.device_get_mem_pool == nullptr ||
      functions.device_get_mem_pool(&pool, device) != 0) {
    return 0;
  }
  return reinterpret_cast<uint64_t>(pool);
}

// The pool that cuMemAllocAsync uses on a device changes rarely: asked once, and again after it was set.
constexpr int kMaxDevices = 64;
std::atomic<uint64_t> current_pool[kMaxDevices];
std::atomic<bool> current_pool_known[kMaxDevices];

uint64_t CachedCurrentPool(int device) {
  if (device < 0 || device >= kMaxDevices) {
    return 0;
  }
  if (!current_pool_known[device].load(std::memory_order_acquire)) {
    current_pool[device].store(CurrentPool(device), std::memory_order_relaxed);
    current_pool_known[device].store(true, std::memory_order_release);
  }
  return current_pool[device].load(std::memory_order_relaxed);
}

void ForgetCurrentPools() {
  for (auto& known : current_pool_known) {
    known.store(false, std::memory_order_release);
  }
}

// `pool` null: the stream's device's current one.
template <typename CallOriginal>
Result Allocate(HookId id, uint64_t* pointer, size_t size, void* pool, void* stream,
                CallOriginal call_original) {
  const DriverScope scope(id);
  if (!scope.outermost()) {
    return call_original();
  }
  const Variant variant = Row(id).variant;
  const bool capturing = CaptureOf(stream, variant).active;
  const Result result = call_original();
  const uint64_t address = Written(pointer, result);
  if (capturing) {
    if (result == 0) {
      const Capture capture = CaptureOf(stream, variant);
      RecordGraphAllocation(scope.proof(), address, size, capture.graph, capture.node,
                            DeviceOfPointer(address));
    }
    return result;
  }
  PoolFacts facts;
  if (!FindPool(pool, &facts)) {
    facts.device = result == 0 ? DeviceOfPointer(address) : CurrentDevice();
  }
  const uint64_t pool_number =
      pool != nullptr ? reinterpret_cast<uint64_t>(pool) : CachedCurrentPool(facts.device);
  Record(scope.proof(),
         {.kind = EventKind::kAllocate,
          .space = facts.space,
          .device = facts.device,
          .address = address,
          .size = size,
          .argument = {pool_number, 0},
          .stream = StreamNumber(stream, variant)},
         result);
  SampleDevice(facts.device, false);
  return result;
}

Result MemAllocAsync(Call<Result, uint64_t*, size_t, void*> call, uint64_t* pointer, size_t size,
                     void* stream) {
  return Allocate(call.id, pointer, size, nullptr, stream, [&] { return call(pointer, size, stream); });
}

Result MemAllocFromPoolAsync(Call<Result, uint64_t*, size_t, void*, void*> call, uint64_t* pointer,
                             size_t size, void* pool, void* stream) {
  return Allocate(call.id, pointer, size, pool, stream, [&] { return call(pointer, size, pool, stream); });
}

Result MemFreeAsync(Call<Result, uint64_t, void*> call, uint64_t pointer, void* stream) {
  const DriverScope scope(call.id);
  if (!scope.outermost() || pointer == 0) {
    return call(pointer, stream);
  }
  const Proof proof = scope.proof();
  if (CaptureOf(stream, call.variant()).active) {
    const Result result = call(pointer, stream);
    if (result == 0) {
      const Capture capture = CaptureOf(stream, call.variant());
      RecordGraphFree(proof, pointer, capture.graph, capture.node);
    }
    return result;
  }
  const int device = DeviceOfPointer(pointer);
  Ticket ticket(proof);
  const Result result = call(pointer, stream);
  ticket.Record(proof,
                {.kind = EventKind::kFree,
                 .space = Space::kStreamOrdered,
                 .device = device,
                 .address = pointer,
                 .stream = StreamNumber(stream, call.variant())},
                result);
  SampleDevice(device, false);
  return result;
}

Result MemPoolCreate(Call<Result, void**, const CUmemPoolProps*> call, void** pool,
                     const CUmemPoolProps* props) {
  const DriverScope scope(call.id);
  const Result result = call(pool, props);
  if (scope.outermost()) {
    const PoolFacts facts = FactsOf(props);
    if (Written(pool, result) != 0) {
      pools.Put(Written(pool, result), Pack(facts));
    }
    Record(scope.proof(),
           {.kind = EventKind::kPoolCreate,
            .space = facts.space,
            .device = facts.device,
            .address = Written(pool, result)},
           result);
  }
  return result;
}

Result MemPoolDestroy(Call<Result, void*> call, void* pool) {
  const DriverScope scope(call.id);
  if (!scope.outermost() || pool == nullptr) {
    return call(pool);
  }
  const Proof proof = scope.proof();
  PoolFacts facts;
  FindPool(pool, &facts);
  Ticket ticket(proof);
  const Result result = call(pool);
  if (result == 0) {
    pools.Erase(reinterpret_cast<uint64_t>(pool));
    ForgetCurrentPools();
  }
  ticket.Record(proof,
                {.kind = EventKind::kPoolDestroy,
                 .space = facts.space,
                 .device = facts.device,
                 .address = reinterpret_cast<uint64_t>(pool)},
                result);
  SampleDevice(facts.device, true);
  return result;
}

Result MemPoolTrimTo(Call<Result, void*, size_t> call, void* pool, size_t keep) {
  const DriverScope scope(call.id);
  const Result result = call(pool, keep);
  if (scope.outermost()) {
    PoolFacts facts;
    if (!FindPool(pool, &facts)) {
      facts.device = CurrentDevice();
    }
    Record(scope.proof(),
           {.kind = EventKind::kPoolTrim,
            .space = facts.space,
            .device = facts.device,
            .address = reinterpret_cast<uint64_t>(pool),
            .size = keep},
           result);
    SampleDevice(facts.device, true);
  }
  return result;
}

// A pool of another process: what it gives here is memory that is owned there.
Result MemPoolImportFromShareableHandle(Call<Result, void**, void*, int, uint64_t> call, void** pool,
                                        void* handle, int type, uint64_t flags) {
  const DriverScope scope(call.id);
  const Result result = call(pool, handle, type, flags);
  if (scope.outermost()) {
    const PoolFacts facts{CurrentDevice(), Space::kAlias};
    if (Written(pool, result) != 0) {
      pools.Put(Written(pool, result), Pack(facts));
    }
    Record(scope.proof(),
           {.kind = EventKind::kPoolCreate,
            .space = facts.space,
            .device = facts.device,
            .address = Written(pool, result)},
           result);
  }
  return result;
}

Result MemPoolImportPointer(Call<Result, uint64_t*, void*, void*> call, uint64_t* pointer, void* pool,
                            void* share_data) {
  const DriverScope scope(call.id);
  const Result result = call(pointer, pool, share_data);
  if (scope.outermost()) {
    uint64_t base = 0;
    size_t size = 0;
    const uint64_t address = Written(pointer, result);
    if (result == 0 && Driver().mem_get_address_range != nullptr &&
        Driver().mem_get_address_range(&base, &size, address) != 0) {
      size = 0;
    }
    Record(scope.proof(),
           {.kind = EventKind::kImport,
            .space = Space::kAlias,
            .device = result == 0 ? DeviceOfPointer(address) : CurrentDevice(),
            .address = address,
            .size = size},
           result);
  }
  return result;
}

// Both change which pool an allocation without one comes from.
Result DeviceSetMemPool(Call<Result, int, void*> call, int device, void* pool) {
  const Result result = call(device, pool);
  ForgetCurrentPools();
  return result;
}

Result MemSetMemPool(Call<Result, void*, int, void*> call, void* location, int type, void* pool) {
  const Result result = call(location, type, pool);
  ForgetCurrentPools();
  return result;
}

}  // namespace
}  // namespace gpumemtrace::interpose::driver

namespace gpumemtrace::interpose {
GPUMEMTRACE_STREAM_ORDERED_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
