// Keeps everything that a reader hands over, for tests.
#pragma once

#include <vector>

#include "analyzer/trace/reader.h"

namespace gpumemtrace::tests {

// Leaves rings alone, whatever the trace says.
inline analyzer::ReaderOptions WithoutRings() {
  analyzer::ReaderOptions options;
  options.recover = false;
  return options;
}

class CollectingSink : public analyzer::TraceSink {
 public:
  void OnEvents(std::span<const analyzer::TraceEvent> batch) override {
    events.insert(events.end(), batch.begin(), batch.end());
  }
  void OnMark(const analyzer::TraceMark& mark) override {
    marks.push_back(mark);
    events_before_mark.push_back(events.size());
  }
  void OnDeviceReading(const analyzer::DeviceReading& reading) override { readings.push_back(reading); }
  void OnGap() override { ++gaps; }

  std::vector<analyzer::TraceEvent> events;
  std::vector<analyzer::TraceMark> marks;
  std::vector<size_t> events_before_mark;
  std::vector<analyzer::DeviceReading> readings;
  int gaps = 0;
};

}  // namespace gpumemtrace::tests
