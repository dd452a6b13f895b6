// How fast a trace is read: decoding alone, with the ledger, with the exact composition of the peak, with all
// analyses; and the memory it took.
//   usage: read_benchmark <trace.pb> [decode|ledger|peak|analyses]
// Make large traces with tests/synthetic (gpumem-synthesize).
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "analyzer/analyzed_trace.h"

namespace {

namespace analyzer = gpumemtrace::analyzer;

class NullSink : public analyzer::TraceSink {
 public:
  void OnEvents(std::span<const analyzer::TraceEvent> events) override {
    // Touch every event, as any consumer would.
    for (const analyzer::TraceEvent& event : events) sum += event.address ^ event.size;
  }
  uint64_t sum = 0;
};

// The peak's composition by site, with the collector's own means.
class PeakSink : public analyzer::LedgerObserver {
 public:
  void OnChanges(const analyzer::Ledger&, std::span<const analyzer::Change> changes) override {
    for (const analyzer::Change& change : changes) {
      if (change.level != analyzer::Level::kBlock) continue;
      if (change.site >= sites_.size()) sites_.resize(change.site + size_t{64});
      Site& site = sites_[change.site];
      if (site.epoch != epoch_) {
        site.epoch = epoch_;
        site.at_peak = site.bytes;
      }
      if (change.kind == analyzer::ChangeKind::kBirth) {
        site.bytes += change.size;
        bytes_ += change.size;
        if (bytes_ > peak_) {
          peak_ = bytes_;
          ++epoch_;
        }
      } else if (change.kind == analyzer::ChangeKind::kDeath) {
        site.bytes -= change.size;
        bytes_ -= change.size;
      }
    }
  }
  // Whether the composition sums to the peak, as it must.
  bool Sums() const {
    uint64_t sum = 0;
    for (const Site& site : sites_) sum += site.epoch == epoch_ ? site.at_peak : site.bytes;
    return sum == peak_;
  }

 private:
  struct Site {
    uint64_t bytes = 0;
    uint64_t at_peak = 0;
    uint64_t epoch = 0;
  };
  std::vector<Site> sites_;
  uint64_t bytes_ = 0;
  uint64_t peak_ = 0;
  uint64_t epoch_ = 1;
};

void Report(const char* what, uint64_t events, uint64_t bytes, std::chrono::steady_clock::time_point start) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%-9s %12llu events %8.2f s %8.1f M events/s %8.1f MB/s  cpu %6.2f s  rss %7.1f MiB\n", what,
              static_cast<unsigned long long>(events), seconds, static_cast<double>(events) / seconds / 1e6,
              static_cast<double>(bytes) / seconds / 1e6,
              static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                  static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6,
              static_cast<double>(usage.ru_maxrss) / 1024);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s <trace.pb> [decode|ledger|peak|analyses]\n", argv[0]);
    return 64;
  }
  const std::string path = argv[1];
  const std::string only = argc > 2 ? argv[2] : "";
  analyzer::AnalyzeOptions all;
  all.reader.recover = false;
  all.symbols.native = false;
  const analyzer::ReaderOptions& options = all.reader;
  if (only.empty() || only == "decode") {
    const auto start = std::chrono::steady_clock::now();
    analyzer::TraceModel model;
    NullSink sink;
    const analyzer::ReadResult result = analyzer::ReadTrace(path, options, model, sink);
    if (result.fault != analyzer::TraceFault::kNone) {
      std::fprintf(stderr, "%s\n", result.message.c_str());
      return 1;
    }
    Report("decode", result.events, result.bytes, start);
  }
  if (only.empty() || only == "ledger") {
    const auto start = std::chrono::steady_clock::now();
    analyzer::TraceModel model;
    analyzer::Ledger ledger(model);
    const analyzer::ReadResult result = analyzer::ReadTrace(path, options, model, ledger);
    ledger.Finish();
    Report("ledger", result.events, result.bytes, start);
  }
  if (only.empty() || only == "peak") {
    const auto start = std::chrono::steady_clock::now();
    analyzer::TraceModel model;
    analyzer::Ledger ledger(model);
    PeakSink peak;
    ledger.AddObserver(&peak);
    const analyzer::ReadResult result = analyzer::ReadTrace(path, options, model, ledger);
    ledger.Finish();
    Report("peak", result.events, result.bytes, start);
    if (!peak.Sums()) {
      std::fprintf(stderr, "the composition does not sum to the peak\n");
      return 1;
    }
  }
  if (only.empty() || only == "analyses") {
    const auto start = std::chrono::steady_clock::now();
    const auto trace = analyzer::Analyze(path, all);
    Report("analyses", trace->read.events, trace->read.bytes, start);
  }
  return 0;
}
