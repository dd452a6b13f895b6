// Any bytes as the ring file of a killed process.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "analyzer/ledger/ledger.h"
#include "analyzer/trace/ring_recovery.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace analyzer = gpumemtrace::analyzer;
  analyzer::TraceModel model;
  analyzer::Ledger ledger(model);
  analyzer::DamageReport damage;
  analyzer::EventDecoder decoder(model, ledger, damage);
  analyzer::RecoveryReport report;
  const analyzer::RingBytes bytes = [data, size](uint64_t offset, std::span<char> out) {
    if (offset > size || out.size() > size - offset) return false;
    std::memcpy(out.data(), data + offset, out.size());
    return true;
  };
  analyzer::RecoverRings(bytes, size, /*any_key=*/true, {}, model, decoder, ledger, report);
  ledger.Finish();
  return 0;
}
