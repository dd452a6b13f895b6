// A growable buffer of bytes that protozero can write into and that never throws: after memory ran out it
// swallows what it is given and says so.
#pragma once

#include <cassert>
#include <cstdint>
#include <iterator>
#include <protozero/basic_pbf_writer.hpp>
#include <protozero/buffer_tmpl.hpp>

#include "recorder/memory/array.h"

namespace gpumemtrace::recorder {

class ByteBuffer {
 public:
  const uint8_t* data() const { return bytes_.data(); }
  uint8_t* data() { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  bool failed() const { return failed_; }
  std::span<const uint8_t> span() const { return bytes_.span(); }

  void Append(const void* data, size_t count) {
    if (!failed_ && !bytes_.Append(static_cast<const uint8_t*>(data), count)) failed_ = true;
  }
  void Push(uint8_t byte) {
    if (!failed_ && !bytes_.Push(byte)) failed_ = true;
  }
  // The name that protozero asks for.
  void push_back(char byte) { Push(static_cast<uint8_t>(byte)); }
  // A LEB128 number, as protobuf's varints.
  void Varint(uint64_t value) {
    while (value >= 0x80) {
      Push(static_cast<uint8_t>(value | 0x80));
      value >>= 7;
    }
    Push(static_cast<uint8_t>(value));
  }
  // New bytes are zero.
  void Resize(size_t size) {
    if (!failed_ && !bytes_.Resize(size)) failed_ = true;
  }
  bool Reserve(size_t size) {
    if (!bytes_.Reserve(size)) failed_ = true;
    return !failed_;
  }
  // Forgets all but the first `size` bytes.
  void Shrink(size_t size) { bytes_.Shrink(size); }
  void Clear() {
    bytes_.Clear();
    failed_ = false;
  }
  void Trim(size_t bytes) { bytes_.Trim(bytes); }
  void EraseRange(size_t from, size_t to) {
    if (failed_ || to <= from) return;
    std::memmove(bytes_.data() + from, bytes_.data() + to, bytes_.size() - to);
    bytes_.Shrink(bytes_.size() - (to - from));
  }

 private:
  Array<uint8_t> bytes_;
  bool failed_ = false;
};

constexpr uint64_t ZigZag(int64_t value) {
  return (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
}

using ProtoWriter = protozero::basic_pbf_writer<ByteBuffer>;

}  // namespace gpumemtrace::recorder

namespace protozero {

template <>
struct buffer_customization<gpumemtrace::recorder::ByteBuffer> {
  using Buffer = gpumemtrace::recorder::ByteBuffer;

  static size_t size(const Buffer* buffer) noexcept { return buffer->size(); }
  static void append(Buffer* buffer, const char* data, size_t count) { buffer->Append(data, count); }
  static void append_zeros(Buffer* buffer, size_t count) { buffer->Resize(buffer->size() + count); }
  static void resize(Buffer* buffer, size_t size) { buffer->Resize(size); }
  static void reserve_additional(Buffer* buffer, size_t size) { buffer->Reserve(buffer->size() + size); }
  static void erase_range(Buffer* buffer, size_t from, size_t to) { buffer->EraseRange(from, to); }
  static char* at_pos(Buffer* buffer, size_t position) {
    return reinterpret_cast<char*>(buffer->data() + position);
  }
  static void push_back(Buffer* buffer, char byte) { buffer->Push(static_cast<uint8_t>(byte)); }
};

}  // namespace protozero
