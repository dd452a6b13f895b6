// A growing segment: one reserved range of addresses into which units of physical memory are mapped. The
// driver functions come through cudaGetDriverEntryPointByVersion, as in PyTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "newest_cuda_runtime.h"

namespace c10::cuda::allocator {

class ExpandableSegment {
 public:
  ExpandableSegment(int device, size_t unit);
  ~ExpandableSegment();
  ExpandableSegment(const ExpandableSegment&) = delete;
  ExpandableSegment& operator=(const ExpandableSegment&) = delete;

  uint64_t address() const { return address_; }
  size_t size() const { return size_; }
  size_t unit() const { return unit_; }
  bool empty() const { return handles_.empty(); }

  // Maps the units of [address, address + size), a multiple of the unit. False, with nothing mapped, when
  // the device has not enough.
  bool Map(uint64_t address, size_t size);
  void Unmap(uint64_t address, size_t size);

 private:
  int device_;
  size_t unit_;
  size_t size_ = 0;
  uint64_t address_ = 0;
  std::map<uint64_t, unsigned long long> handles_;
};

}  // namespace c10::cuda::allocator
