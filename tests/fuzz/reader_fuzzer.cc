// Any bytes as a trace: read, kept in the ledger, every analysis concluded, every frame named, and the report
// written. Must not crash, hang or grow without bound.
#include <cstddef>
#include <cstdint>

#include "analyzer/analyzed_trace.h"
#include "analyzer/report/sections.h"
#include "analyzer/trace/crc32c.h"
#include "gpumemtrace/trace.pb.h"

namespace gpumemtrace::analyzer {
namespace {

void Read(std::span<const char> bytes) {
  AnalyzeOptions options;
  options.reader.recover = false;
  options.symbols.native = false;
  options.analyses.suppressions = {"leak:*lib*", "leak:train.py"};
  options.analyses.snapshots = {3, 20};
  const std::unique_ptr<AnalyzedTrace> trace = AnalyzeBytes(bytes, "fuzz", options);
  for (FrameId frame = 0; frame < trace->model.frames.size() && frame < 64; ++frame) {
    trace->symbols.Resolve(frame);
  }
  for (SiteId site = 0; site < trace->model.sites.size() && site < 64; ++site) {
    trace->symbols.Merge(trace->model.sites[site]);
  }
  TextWriter text{TextWriter::Options{}};
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const Section* section : AllSections()) {
    section->text(*trace, 2, text);
    section->json(*trace, json);
  }
  json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
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
