// Handles of CUDA's other libraries and of NCCL: creations and destructions, each with its stack, so that a
// handle made per call and never destroyed shows. What a handle allocates is recorded by the driver hooks.
#include <cstdint>

#include "interpose/driver_functions.h"
#include "interpose/hooks.h"
#include "interpose/record.h"

namespace gpumemtrace::interpose::libraries {
namespace {

void RecordCreated(const LibraryScope& scope, uint64_t handle, Result result) {
  if (scope.outermost()) {
    const int device = CurrentDevice();
    Record(scope.proof(), {.kind = EventKind::kHandleCreate, .device = device, .address = handle}, result);
    SampleDevice(device, true);
  }
}

uint64_t Written(void* const* out, Result result) {
  return result == 0 && out != nullptr ? reinterpret_cast<uint64_t>(*out) : 0;
}

template <typename CallOriginal>
Result Destroyed(HookId id, uint64_t handle, CallOriginal call_original) {
  const LibraryScope scope(id);
  if (!scope.outermost() || handle == 0) {
    return call_original();
  }
  const Proof proof = scope.proof();
  const int device = CurrentDevice();
  Ticket ticket(proof);
  const Result result = call_original();
  ticket.Record(proof, {.kind = EventKind::kHandleDestroy, .device = device, .address = handle}, result);
  return result;
}

// xxxCreate(handle*, …): the further arguments are words.
Result Create(Call<Result, void**, Word> call, void** handle, Word argument) {
  const LibraryScope scope(call.id);
  const Result result = call(handle, argument);
  RecordCreated(scope, Written(handle, result), result);
  return result;
}

Result Destroy(Call<Result, void*> call, void* handle) {
  return Destroyed(call.id, reinterpret_cast<uint64_t>(handle), [&] { return call(handle); });
}

// cuSPARSELt's handle is a structure of the caller's; its address names it.
Result CreateInPlace(Call<Result, void*> call, void* handle) {
  const LibraryScope scope(call.id);
  const Result result = call(handle);
  RecordCreated(scope, result == 0 ? reinterpret_cast<uint64_t>(handle) : 0, result);
  return result;
}

// cuFFT's handles are small integers, counted from 0; 1 is added, because 0 means no handle in a trace.
constexpr uint64_t kFirstPlan = 1;

uint64_t PlanNumber(const int* plan, Result result) {
  return result == 0 && plan != nullptr ? static_cast<uint64_t>(*plan) + kFirstPlan : 0;
}

Result CreatePlan(Call<Result, int*, Word, Word, Word, Word> call, int* plan, Word a, Word b, Word c,
                  Word d) {
  const LibraryScope scope(call.id);
  const Result result = call(plan, a, b, c, d);
  RecordCreated(scope, PlanNumber(plan, result), result);
  return result;
}

// cufftPlanMany(plan*, rank, n, inembed, istride, idist, onembed, ostride, odist, type, batch).
Result CreatePlanMany(Call<Result, int*, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word> call,
                      int* plan, Word a, Word b, Word c, Word d, Word e, Word f, Word g, Word h, Word i,
                      Word j) {
  const LibraryScope scope(call.id);
  const Result result = call(plan, a, b, c, d, e, f, g, h, i, j);
  RecordCreated(scope, PlanNumber(plan, result), result);
  return result;
}

Result DestroyPlan(Call<Result, int> call, int plan) {
  return Destroyed(call.id, static_cast<uint64_t>(plan) + kFirstPlan, [&] { return call(plan); });
}

// NCCL, nccl.h 2.27. ncclUniqueId is a structure of 128 bytes passed by value.
struct NcclUniqueId {
  char bytes[128];
};

Result CommInitRank(Call<Result, void**, int, NcclUniqueId, int> call, void** comm, int ranks,
                    NcclUniqueId id, int rank) {
  const LibraryScope scope(call.id);
  const Result result = call(comm, ranks, id, rank);
  RecordCreated(scope, Written(comm, result), result);
  return result;
}

Result CommInitRankConfig(Call<Result, void**, int, NcclUniqueId, int, void*> call, void** comm, int ranks,
                          NcclUniqueId id, int rank, void* config) {
  const LibraryScope scope(call.id);
  const Result result = call(comm, ranks, id, rank, config);
  // A non-blocking communicator answers ncclInProgress (7) and exists.
  RecordCreated(scope, Written(comm, result == 7 ? 0 : result), result == 7 ? 0 : result);
  return result;
}

Result CommInitRankScalable(Call<Result, void**, int, int, int, void*, void*> call, void** comm, int ranks,
                            int rank, int id_count, void* ids, void* config) {
  const LibraryScope scope(call.id);
  const Result result = call(comm, ranks, rank, id_count, ids, config);
  RecordCreated(scope, Written(comm, result == 7 ? 0 : result), result == 7 ? 0 : result);
  return result;
}

Result CommInitAll(Call<Result, void**, int, const int*> call, void** comms, int count, const int* devices) {
  const LibraryScope scope(call.id);
  const Result result = call(comms, count, devices);
  if (scope.outermost() && comms != nullptr) {
    for (int i = 0; i < (result == 0 ? count : 1); ++i) {
      Record(scope.proof(),
             {.kind = EventKind::kHandleCreate,
              .device = devices != nullptr ? devices[i] : i,
              .address = Written(comms + i, result)},
             result);
    }
  }
  return result;
}

Result CommSplit(Call<Result, void*, int, int, void**, void*> call, void* parent, int color, int key,
                 void** comm, void* config) {
  const LibraryScope scope(call.id);
  const Result result = call(parent, color, key, comm, config);
  // A rank outside every color gets no communicator, and that is a success.
  const Result outcome = result == 7 ? 0 : result;
  if (Written(comm, outcome) != 0 || outcome != 0) {
    RecordCreated(scope, Written(comm, outcome), outcome);
  }
  return result;
}

Result CommShrink(Call<Result, void*, int*, int, void**, void*, int> call, void* parent, int* excluded,
                  int count, void** comm, void* config, int flags) {
  const LibraryScope scope(call.id);
  const Result result = call(parent, excluded, count, comm, config, flags);
  RecordCreated(scope, Written(comm, result == 7 ? 0 : result), result == 7 ? 0 : result);
  return result;
}

}  // namespace
}  // namespace gpumemtrace::interpose::libraries

namespace gpumemtrace::interpose {
GPUMEMTRACE_LIBRARY_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
