// See driver_functions.h. Signatures and enumerators as in cuda.h.
#include "interpose/driver_functions.h"

#include <atomic>
#include <cstring>

#include "interpose/elf_image.h"
#include "interpose/original.h"

namespace gpumemtrace::interpose {
namespace {

constexpr int kPointerAttributeDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr int kCaptureActive = 1;                  // CU_STREAM_CAPTURE_STATUS_ACTIVE

constinit const DriverFunctions none = {};
constinit DriverFunctions functions = {};
enum : int { kUnknown, kFinding, kKnown };
std::atomic<int> state{kUnknown};

template <typename Function>
void Set(Function*& function, const ElfImage& driver, const char* symbol) {
  function = reinterpret_cast<Function*>(driver.FindFunction(symbol));
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

bool Find() {
  const ElfImage driver = FindDriver();
  if (!driver.valid()) {
    return false;
  }
  Set(functions.ctx_get_device, driver, "cuCtxGetDevice");
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
  Set(functions.graph_get_nodes, driver, "cuGraphGetNodes");
  Set(functions.graph_node_get_type, driver, "cuGraphNodeGetType");
  Set(functions.graph_child_get_graph, driver, "cuGraphChildGraphNodeGetGraph");
  return true;
}

}  // namespace

const DriverFunctions& Driver() {
  int known = state.load(std::memory_order_acquire);
  if (known == kKnown) [[likely]] {
    return functions;
  }
  // Whoever comes while another thread is looking does without.
  if (known == kUnknown && state.compare_exchange_strong(known, kFinding, std::memory_order_acq_rel)) {
    const bool found = Find();
    state.store(found ? kKnown : kUnknown, std::memory_order_release);
    return found ? functions : none;
  }
  return none;
}

int CurrentDevice() {
  const DriverFunctions& driver = Driver();
  int device = -1;
  if (driver.ctx_get_device == nullptr || driver.ctx_get_device(&device) != 0) {
    return -1;
  }
  return device;
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
    if (driver.stream_get_capture_info(handle, &status, &id, &graph, &nodes, &count) == 0 &&
        status == kCaptureActive) {
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
