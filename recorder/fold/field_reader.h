// Reads protobuf's wire format, field by field, out of bytes that may be anything.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

namespace gpumemtrace::recorder {

struct Field {
  uint32_t number = 0;
  // The whole field as it stands there.
  std::span<const uint8_t> raw;
  // Length-delimited fields.
  std::span<const uint8_t> bytes;
  // All others.
  uint64_t value = 0;

  int64_t Signed() const { return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1); }
};

// LEB128 numbers one after another; zeros after the end, and then `exhausted`.
class Varints {
 public:
  Varints() = default;
  explicit Varints(std::span<const uint8_t> bytes) : at_(bytes.data()), end_(at_ + bytes.size()) {}

  bool done() const { return at_ == end_; }
  // More was asked for than was there, or a number did not end.
  bool exhausted() const { return exhausted_; }
  uint64_t Next() {
    uint64_t value = 0;
    for (unsigned shift = 0; at_ < end_ && shift < 64; shift += 7) {
      const uint8_t byte = *at_++;
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    exhausted_ = true;
    return 0;
  }
  uint64_t NextZigZag() {
    const uint64_t value = Next();
    return (value >> 1) ^ (0 - (value & 1));
  }
  const uint8_t* at() const { return at_; }

 private:
  const uint8_t* at_ = nullptr;
  const uint8_t* end_ = nullptr;
  bool exhausted_ = false;
};

class FieldReader {
 public:
  explicit FieldReader(std::span<const uint8_t> message) : rest_(message) {}

  // False at the end, and when the bytes are no message: then failed().
  bool Next(Field* field) {
    if (rest_.empty() || failed_) return false;
    Varints varints(rest_);
    const uint64_t tag = varints.Next();
    *field = {};
    field->number = static_cast<uint32_t>(tag >> 3);
    const auto used = [&] { return static_cast<size_t>(varints.at() - rest_.data()); };
    size_t size = 0;
    switch (tag & 7) {
      case 0:
        field->value = varints.Next();
        size = used();
        break;
      case 1:
      case 5: {
        const size_t width = (tag & 7) == 1 ? 8 : 4;
        size = used() + width;
        if (size <= rest_.size()) std::memcpy(&field->value, rest_.data() + used(), width);
        break;
      }
      case 2: {
        const uint64_t length = varints.Next();
        if (varints.exhausted() || length > rest_.size() - used()) return Fail();
        field->bytes = rest_.subspan(used(), length);
        size = used() + length;
        break;
      }
      default:
        return Fail();
    }
    if (varints.exhausted() || size > rest_.size()) return Fail();
    field->raw = rest_.first(size);
    rest_ = rest_.subspan(size);
    return true;
  }
  bool failed() const { return failed_; }

 private:
  bool Fail() {
    failed_ = true;
    return false;
  }

  std::span<const uint8_t> rest_;
  bool failed_ = false;
};

}  // namespace gpumemtrace::recorder
