// cuGetProcAddress and cuGetExportTable. The answer depends on the CUDA version that the caller was built
// for and on the per-thread-default-stream flag, as with the real driver.
#include <string.h>

#include "state.h"

using namespace simulated_cuda;

namespace {

constexpr int kDriverVersion = 13000;

struct Row {
  const char* name;
  int since;
  void* function;
  void* per_thread;  // variant for the per-thread default stream, or null
};

#define PLAIN(name, since, symbol) {#name, since, reinterpret_cast<void*>(&::symbol), nullptr},
#define STREAM(name, since, symbol) \
  {#name, since, reinterpret_cast<void*>(&::symbol), reinterpret_cast<void*>(&::symbol##_ptsz)},

const Row kRows[] = {
#include "functions.inc"
};

CUresult Find(const char* symbol, void** function, int version, cuuint64_t flags,
              CUdriverProcAddressQueryResult* status) {
  if (symbol == nullptr || function == nullptr || version > kDriverVersion) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  bool known = false;
  int best = -1;
  for (const Row& row : kRows) {
    if (strcmp(row.name, symbol) != 0) continue;
    known = true;
    if (row.since > version || row.since <= best) continue;
    best = row.since;
    const bool per_thread =
        (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0 && row.per_thread != nullptr;
    *function = per_thread ? row.per_thread : row.function;
  }
  if (status != nullptr) {
    *status = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
              : known              ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                   : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return CUDA_SUCCESS;
}

int TableAnswer() {
  return 42;
}

}  // namespace

EXPORT CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  static const uint32_t call = ledger::RegisterCall(__func__);
  ledger::CountCall(call);
  const CUresult result = Find(symbol, function, version, flags, nullptr);
  // The first ABI has no status: it reports a miss as an error.
  return result == CUDA_SUCCESS && *function == nullptr ? CUDA_ERROR_NOT_FOUND : result;
}
EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult* status) {
  static const uint32_t call = ledger::RegisterCall(__func__);
  ledger::CountCall(call);
  return Find(symbol, function, version, flags, status);
}

// One private table, whose first entry is its size, as in the real driver.
EXPORT CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  static const uint32_t call = ledger::RegisterCall(__func__);
  ledger::CountCall(call);
  static const void* const kTable[] = {reinterpret_cast<void*>(sizeof(void*) * 2),
                                       reinterpret_cast<void*>(&TableAnswer)};
  static const unsigned char kId[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                        0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
  if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (memcmp(id->bytes, kId, sizeof kId) != 0) return CUDA_ERROR_INVALID_VALUE;
  *table = kTable;
  return CUDA_SUCCESS;
}
