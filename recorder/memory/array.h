// A growable array of plain values in pages of its own. Without exceptions: what may fail says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "recorder/memory/pages.h"

namespace gpumemtrace::recorder {

template <typename T>
class Array {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Array() = default;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { UnmapPages(data_, capacity_ * sizeof(T)); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& back() { return data_[size_ - 1]; }
  std::span<const T> span() const { return {data_, size_}; }

  bool Reserve(size_t wanted) {
    if (wanted <= capacity_) return true;
    if (wanted > SIZE_MAX / sizeof(T) / 4) return false;
    size_t capacity = capacity_ + capacity_ / 2;
    if (capacity < wanted) capacity = wanted;
    // Whole pages are what the kernel gives anyway.
    const size_t bytes = (capacity * sizeof(T) + 4095) & ~static_cast<size_t>(4095);
    capacity = bytes / sizeof(T);
    void* pages = data_ == nullptr ? MapPages(capacity * sizeof(T))
                                   : RemapPages(data_, capacity_ * sizeof(T), capacity * sizeof(T));
    if (pages == nullptr) return false;
    data_ = static_cast<T*>(pages);
    capacity_ = capacity;
    return true;
  }
  bool Push(const T& value) {
    if (size_ == capacity_ && !Reserve(size_ + 1)) return false;
    data_[size_++] = value;
    return true;
  }
  bool Append(const T* values, size_t count) {
    if (count == 0) return true;
    if (!Reserve(size_ + count)) return false;
    std::memcpy(data_ + size_, values, count * sizeof(T));
    size_ += count;
    return true;
  }
  // New elements are zero.
  bool Resize(size_t size) {
    if (!Reserve(size)) return false;
    if (size > size_) std::memset(static_cast<void*>(data_ + size_), 0, (size - size_) * sizeof(T));
    size_ = size;
    return true;
  }
  // Forgets all but the first `size` elements.
  void Shrink(size_t size) {
    if (size < size_) size_ = size;
  }
  void Swap(Array& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }
  // Keeps the memory.
  void Clear() { size_ = 0; }
  // Gives the memory back when it is more than `bytes`.
  void Trim(size_t bytes) {
    if (size_ != 0 || capacity_ * sizeof(T) <= bytes) return;
    UnmapPages(data_, capacity_ * sizeof(T));
    data_ = nullptr;
    capacity_ = 0;
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace gpumemtrace::recorder
