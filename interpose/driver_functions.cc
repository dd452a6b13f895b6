// See driver_functions.h. Signatures and enumerators as in cuda.h.
#include "interpose/driver_functions.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>

#include "interpose/elf_image.h"
#include "interpose/handle_map.h"
#include "interpose/original.h"

namespace gpumemtrace::interpose {
namespace {

constexpr int kPointerAttributeDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr int kCaptureActive = 1;                  // CU_STREAM_CAPTURE_STATUS_ACTIVE

constinit DriverFunctions functions;
std::atomic<bool> known{false};

template <typename Function>
void Set(DriverFunction<Function>& function, const ElfImage& driver, const char* symbol) {
  function.Set(reinterpret_cast<Function*>(driver.FindFunction(symbol)));
}

// The object is found by its name and read directly: what we call is the driver and nobody's wrapper of it.
ElfImage FindDriver() {
  ElfImage driver;
  VisitImages(
      [](void* context, const ElfImage& image) {
        if (std::strncmp(BaseName(image.path()), "libcuda.so", 10) != 0) {
          return true;
        }
        *static_cast<ElfImage*>(context) = image;
        return false;
      },
      &driver);
  return driver;
}

// The driver may live in a namespace of its own (dlmopen), which the list of objects does not show. Then the
// functions that our hooks stand in front of lead to it.
ElfImage FindDriverBehindHooks() {
  for (size_t i = 0; i < kHookCount; ++i) {
    if (kHookRows[i].library != Library::kDriver) {
      continue;
    }
    for (const std::atomic<void*>& original : originals[i]) {
      const void* address = original.load(std::memory_order_acquire);
      Dl_info info;
      link_map* map = nullptr;
      if (address != nullptr &&
          dladdr1(address, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) != 0 && map != nullptr &&
          std::strncmp(BaseName(map->l_name), "libcuda.so", 10) == 0) {
        return ElfImage(*map);
      }
    }
  }
  return ElfImage();
}

bool Find() {
  ElfImage driver = FindDriver();
  if (!driver.valid()) {
    driver = FindDriverBehindHooks();
  }
  if (!driver.valid()) {
    return false;
  }
  Set(functions.ctx_get_device, driver, "cuCtxGetDevice");
  Set(functions.ctx_get_current, driver, "cuCtxGetCurrent");
  Set(functions.mem_get_info, driver, "cuMemGetInfo_v2");
  Set(functions.stream_get_capture_info, driver, "cuStreamGetCaptureInfo_v2");
  Set(functions.stream_is_capturing, driver, "cuStreamIsCapturing");
  Set(functions.pointer_get_attribute, driver, "cuPointerGetAttribute");
  Set(functions.device_get_count, driver, "cuDeviceGetCount");
  Set(functions.device_get, driver, "cuDeviceGet");
  Set(functions.device_get_name, driver, "cuDeviceGetName");
  Set(functions.device_get_uuid, driver, "cuDeviceGetUuid_v2");
  if (functions.device_get_uuid == nullptr) {
    Set(functions.device_get_uuid, driver, "cuDeviceGetUuid");
  }
  Set(functions.device_total_mem, driver, "cuDeviceTotalMem_v2");
  Set(functions.driver_get_version, driver, "cuDriverGetVersion");
  Set(functions.mem_get_address_range, driver, "cuMemGetAddressRange_v2");
  Set(functions.device_get_mem_pool, driver, "cuDeviceGetMemPool");
  Set(functions.array_3d_get_descriptor, driver, "cuArray3DGetDescriptor_v2");
  Set(functions.mipmapped_array_get_level, driver, "cuMipmappedArrayGetLevel");
  Set(functions.primary_ctx_get_state, driver, "cuDevicePrimaryCtxGetState");
  Set(functions.graph_get_nodes, driver, "cuGraphGetNodes");
  Set(functions.graph_node_get_type, driver, "cuGraphNodeGetType");
  Set(functions.graph_child_get_graph, driver, "cuGraphChildGraphNodeGetGraph");
  return true;
}

}  // namespace

const DriverFunctions& Driver() {
  // Threads that come while one is looking look for themselves and find the same: none does without (its
  // event would have no device), and none waits (the one who looks may need a lock that the other has, or be
  // gone after a fork).
  if (!known.load(std::memory_order_acquire) && Find()) [[unlikely]] {
    known.store(true, std::memory_order_release);
  }
  return functions;
}

int CurrentDevice() {
  const DriverFunctions& driver = Driver();
  int device = -1;
  if (driver.ctx_get_device == nullptr || driver.ctx_get_device(&device) != 0) {
    return -1;
  }
  return device;
}

namespace {
constinit HandleMap<1024> own_contexts;
std::atomic<bool> any_own_context{false};
}  // namespace

void RememberContext(uint64_t context, int device) {
  if (context != 0 && own_contexts.Put(context, static_cast<uint64_t>(device + 1))) {
    any_own_context.store(true, std::memory_order_relaxed);
  }
}

int ForgetContext(uint64_t context) {
  uint64_t value = 0;
  if (!own_contexts.Get(context, &value)) {
    return -1;
  }
  own_contexts.Erase(context);
  return static_cast<int>(value) - 1;
}

uint64_t CurrentOwnContext() {
  if (!any_own_context.load(std::memory_order_relaxed)) [[likely]] {
    return 0;
  }
  void* context = nullptr;
  const DriverFunctions& driver = Driver();
  if (driver.ctx_get_current == nullptr || driver.ctx_get_current(&context) != 0) {
    return 0;
  }
  const auto number = reinterpret_cast<uint64_t>(context);
  return number != 0 && own_contexts.Contains(number) ? number : 0;
}

int DeviceOfPointer(uint64_t pointer) {
  static std::atomic<int> device_count{0};
  const DriverFunctions& driver = Driver();
  int count = device_count.load(std::memory_order_relaxed);
  if (count == 0 && driver.device_get_count != nullptr && driver.device_get_count(&count) == 0) {
    device_count.store(count, std::memory_order_relaxed);
  }
  if (count == 1) {
    return 0;
  }
  int device = -1;
  if (driver.pointer_get_attribute != nullptr &&
      driver.pointer_get_attribute(&device, kPointerAttributeDeviceOrdinal, pointer) == 0) {
    return device;
  }
  return CurrentDevice();
}

uint64_t StreamNumber(void* stream, Variant variant) {
  const auto number = reinterpret_cast<uint64_t>(stream);
  if (number == 0) {
    return variant == Variant::kPerThread ? 2 : 0;
  }
  return number == 1 ? 0 : number;  // CU_STREAM_LEGACY
}

Capture CaptureOf(void* stream, Variant variant) {
  Capture capture;
  const uint64_t number = StreamNumber(stream, variant);
  const DriverFunctions& driver = Driver();
  // The legacy stream cannot be captured, and is not asked.
  if (number == 0) {
    return capture;
  }
  auto* handle = reinterpret_cast<void*>(number);
  int status = 0;
  if (driver.stream_get_capture_info != nullptr) {
    uint64_t id = 0;
    void* graph = nullptr;
    void* const* nodes = nullptr;
    size_t count = 0;
    int result = driver.stream_get_capture_info(handle, &status, &id, &graph, &nodes, &count);
    if (result != 0) {
      // With edge data (12.3) this ABI cannot tell the nodes; it still tells the graph.
      nodes = nullptr;
      count = 0;
      result = driver.stream_get_capture_info(handle, &status, &id, &graph, nullptr, nullptr);
    }
    if (result == 0 && status == kCaptureActive) {
      capture.active = true;
      capture.graph = reinterpret_cast<uint64_t>(graph);
      capture.node = count != 0 && nodes != nullptr ? reinterpret_cast<uint64_t>(nodes[count - 1]) : 0;
      return capture;
    }
  }
  if (driver.stream_is_capturing != nullptr && driver.stream_is_capturing(handle, &status) == 0) {
    capture.active = status == kCaptureActive;
  }
  return capture;
}

}  // namespace gpumemtrace::interpose
