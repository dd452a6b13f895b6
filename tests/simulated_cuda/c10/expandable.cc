#include "expandable.h"

#include "newest_cuda.h"

namespace c10::cuda::allocator {
namespace {

struct Functions {
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
};

template <typename F>
void Get(const char* name, F& out) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
  out = reinterpret_cast<F>(function);
}

const Functions& Driver() {
  static const Functions* const functions = [] {
    auto* f = new Functions{};
    Get("cuMemAddressReserve", f->reserve);
    Get("cuMemAddressFree", f->free);
    Get("cuMemCreate", f->create);
    Get("cuMemRelease", f->release);
    Get("cuMemMap", f->map);
    Get("cuMemUnmap", f->unmap);
    Get("cuMemSetAccess", f->set_access);
    return f;
  }();
  return *functions;
}

}  // namespace

ExpandableSegment::ExpandableSegment(int device, size_t unit) : device_(device), unit_(unit) {
  size_t free_bytes = 0;
  size_t total = 0;
  cudaMemGetInfo(&free_bytes, &total);
  // One and an eighth of the device, so that holes left by freed units do not use the range up.
  size_ = (total + total / 8 + unit - 1) / unit * unit;
  CUdeviceptr address = 0;
  if (Driver().reserve(&address, size_, 0, 0, 0) == CUDA_SUCCESS) {
    address_ = address;
  } else {
    size_ = 0;
  }
}

ExpandableSegment::~ExpandableSegment() {
  if (address_ != 0) Driver().free(address_, size_);
}

bool ExpandableSegment::Map(uint64_t address, size_t size) {
  for (uint64_t at = address; at < address + size; at += unit_) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
    CUmemGenericAllocationHandle handle = 0;
    if (Driver().create(&handle, unit_, &properties, 0) != CUDA_SUCCESS) {
      if (at != address) Unmap(address, at - address);
      return false;
    }
    Driver().map(at, unit_, 0, handle, 0);
    handles_[at] = handle;
  }
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device_}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  Driver().set_access(address, size, &access, 1);
  return true;
}

void ExpandableSegment::Unmap(uint64_t address, size_t size) {
  for (uint64_t at = address; at < address + size; at += unit_) {
    Driver().unmap(at, unit_);
    Driver().release(handles_.at(at));
    handles_.erase(at);
  }
}

}  // namespace c10::cuda::allocator
