// A growing array in mapped pages: takes nothing from the host's heap and gives everything back at the end.
#pragma once

#include <cstddef>

#include "recorder/memory/pages.h"

namespace gpumemtrace::recorder::census {

template <typename T>
class Pages {
 public:
  Pages() = default;
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { Release(); }

  // Zeroed room for so many elements in place of what was there; false when there is no memory.
  bool Reset(size_t count) {
    Release();
    const size_t bytes = (count == 0 ? 1 : count) * sizeof(T);
    void* memory = MapPages(bytes);
    if (memory == nullptr) return false;
    data_ = static_cast<T*>(memory);
    capacity_ = count == 0 ? 1 : count;
    return true;
  }

  bool Push(T value) {
    if (size_ == capacity_ && !Grow()) return false;
    data_[size_++] = value;
    return true;
  }

  T& operator[](size_t place) { return data_[place]; }
  const T& operator[](size_t place) const { return data_[place]; }
  T* data() { return data_; }
  // Elements pushed.
  size_t size() const { return size_; }
  size_t capacity() const { return capacity_; }

  void Swap(Pages& other) {
    T* data = data_;
    const size_t size = size_;
    const size_t capacity = capacity_;
    data_ = other.data_, size_ = other.size_, capacity_ = other.capacity_;
    other.data_ = data, other.size_ = size, other.capacity_ = capacity;
  }

 private:
  static constexpr size_t kFirst = size_t{1} << 14;

  bool Grow() {
    if (data_ == nullptr) return Reset(kFirst);
    void* memory = RemapPages(data_, capacity_ * sizeof(T), 2 * capacity_ * sizeof(T));
    if (memory == nullptr) return false;
    data_ = static_cast<T*>(memory);
    capacity_ *= 2;
    return true;
  }

  void Release() {
    UnmapPages(data_, capacity_ * sizeof(T));
    data_ = nullptr;
    size_ = capacity_ = 0;
  }

  T* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace gpumemtrace::recorder::census
