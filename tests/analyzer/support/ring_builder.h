// Writes ring files for tests, from the words of proto/gpumemtrace/ring_file.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpumemtrace/ring_file.h"
#include "tests/analyzer/support/trace_builder.h"

namespace gpumemtrace::tests {

class RingBuilder {
 public:
  RingBuilder(uint32_t rings, uint64_t capacity, uint64_t key, std::vector<std::string> api_names);

  void Thread(uint32_t ring, uint64_t tid, const std::string& name);
  void Module(uint32_t ring, const std::string& path, uint64_t load_bias, uint64_t start, uint64_t end);
  void Code(uint32_t ring, uint64_t number, const std::string& file, const std::string& name,
            int32_t first_line);
  void Stack(uint32_t ring, uint64_t number, const std::vector<uint64_t>& native,
             const std::vector<ring_file::PythonFrame>& python);
  // `api` is an index into the names given; stacks are numbers.
  void Event(uint32_t ring, const BuiltEvent& event, uint16_t api, uint64_t stack = 0, uint64_t forward = 0);
  void Mark(uint32_t ring, uint64_t sequence, const std::string& text);
  // Any bytes as one record.
  void Raw(uint32_t ring, std::string record);

  // Everything so far is in the trace.
  void Consume(uint32_t ring) { rings_[ring].tail = rings_[ring].head; }
  uint64_t head(uint32_t ring) const { return rings_[ring].head; }

  ring_file::FileHeader& header() { return header_; }
  std::string Bytes() const;

 private:
  struct Ring {
    uint64_t head = 0;
    uint64_t tail = 0;
    std::string data;
  };
  void Append(uint32_t ring, std::string record);

  ring_file::FileHeader header_{};
  std::string names_;
  std::vector<Ring> rings_;
};

}  // namespace gpumemtrace::tests
