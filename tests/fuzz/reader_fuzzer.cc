// Any bytes as a trace: read, kept in the ledger, and every frame named. Must not crash, hang or grow without
// bound.
#include <cstddef>
#include <cstdint>

#include "analyzer/ledger/ledger.h"
#include "analyzer/symbols/symbolizer.h"
#include "analyzer/trace/crc32c.h"
#include "analyzer/trace/reader.h"
#include "gpumemtrace/trace.pb.h"

namespace gpumemtrace::analyzer {
namespace {

void Read(std::span<const char> bytes) {
  TraceModel model;
  Ledger ledger(model);
  ReaderOptions options;
  options.recover = false;
  ReadTraceBytes(bytes, "fuzz", options, model, ledger);
  ledger.Finish();
  SymbolizerOptions names;
  names.native = false;
  Symbolizer symbolizer(model, names);
  for (FrameId frame = 0; frame < model.frames.size() && frame < 64; ++frame) symbolizer.Resolve(frame);
  for (SiteId site = 0; site < model.sites.size() && site < 64; ++site) symbolizer.Merge(model.sites[site]);
}

// A fuzzer does not guess checksums: set them right, so that what is behind them is reached, too.
std::string WithRightChecksums(const uint8_t* data, size_t size) {
  Trace trace;
  if (!trace.ParseFromArray(data, static_cast<int>(size))) return {};
  for (Packet& packet : *trace.mutable_packet()) {
    packet.set_crc32c(Crc32c(packet.content().SerializeAsString()));
  }
  return trace.SerializeAsString();
}

}  // namespace
}  // namespace gpumemtrace::analyzer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gpumemtrace::analyzer::Read({reinterpret_cast<const char*>(data), size});
  const std::string repaired = gpumemtrace::analyzer::WithRightChecksums(data, size);
  if (!repaired.empty()) gpumemtrace::analyzer::Read(repaired);
  return 0;
}
