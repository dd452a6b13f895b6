// Makes censuses for tests.
#pragma once

#include <string>
#include <vector>

#include "gpumemtrace/trace.pb.h"

namespace gpumemtrace::analyzer {

class CensusBuilder {
 public:
  CensusBuilder() { census_.add_text(""); }

  uint32_t Text(const std::string& text) {
    for (int i = 0; i < census_.text_size(); ++i) {
      if (census_.text(i) == text) return static_cast<uint32_t>(i);
    }
    census_.add_text(text);
    return static_cast<uint32_t>(census_.text_size() - 1);
  }

  // `path`: of the holder; "" = not told. Tensors with the same path share the holder.
  void Tensor(uint64_t address, uint64_t bytes, const std::string& path,
              Census::Role role = Census::ROLE_UNKNOWN, Holder::Kind kind = Holder::NAME,
              uint32_t flags = 0) {
    uint32_t holder = 0;
    if (!path.empty()) {
      const uint32_t text = Text(path);
      for (int i = 0; i < census_.holder_entry_size(); ++i) {
        if (census_.holder_entry(i).path() == text) holder = static_cast<uint32_t>(i + 1);
      }
      if (holder == 0) {
        Holder* entry = census_.add_holder_entry();
        entry->set_kind(kind);
        entry->set_path(text);
        holder = static_cast<uint32_t>(census_.holder_entry_size());
      }
    }
    census_.add_address(address);
    census_.add_bytes(bytes);
    census_.add_storage_bytes(0);
    census_.add_shape(Text("(" + std::to_string(bytes / 4) + ",)"));
    census_.add_dtype(Text("float32"));
    census_.add_name(0);
    census_.add_grad_fn(0);
    census_.add_holder(holder);
    census_.mutable_role()->push_back(static_cast<char>(role));
    census_.mutable_framework()->push_back(1);
    census_.mutable_flags()->push_back(static_cast<char>(flags));
    census_.mutable_device()->push_back(0);
  }

  Holder& HolderEntry(int index) { return *census_.mutable_holder_entry(index); }
  Census& census() { return census_; }

  std::vector<CensusPart> Parts(uint32_t count, uint64_t first_sequence = 1, uint64_t last_sequence = 1,
                                uint64_t time_us = 0) const {
    const std::string data = census_.SerializeAsString();
    std::vector<CensusPart> parts;
    for (uint32_t i = 0; i < count; ++i) {
      const size_t begin = data.size() * i / count;
      const size_t end = data.size() * (i + 1) / count;
      CensusPart part;
      part.set_census(1);
      part.set_part(i);
      part.set_parts(count);
      part.set_raw_size(data.size());
      part.set_first_sequence(first_sequence);
      part.set_last_sequence(last_sequence);
      part.set_time_us(time_us);
      part.set_data(data.substr(begin, end - begin));
      parts.push_back(part);
    }
    return parts;
  }

 private:
  Census census_;
};

}  // namespace gpumemtrace::analyzer
