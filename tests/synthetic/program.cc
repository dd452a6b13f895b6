#include "tests/synthetic/program.h"

namespace gpumemtrace::synthetic {
namespace {

const char kPackages[] = "/usr/lib/python3/dist-packages";

bool OnTheDevice(Space space) {
  return space != PINNED_HOST && space != REGISTERED_HOST && space != HOST_POOL && space != SPACE_UNSPECIFIED;
}

}  // namespace

Program::Program(const std::string& path, uint64_t capacity) : trace_(path), capacity_(capacity) {
  const std::string torch = std::string(kPackages) + "/torch";
  script_ = trace_.Code("/home/user/train.py", "<module>", 1);
  module_call_ = trace_.Code(torch + "/nn/modules/module.py", "Module._call_impl", 1700);
  module_apply_ = trace_.Code(torch + "/nn/modules/module.py", "Module._apply", 900);
  functional_ = trace_.Code(torch + "/nn/functional.py", "linear", 2000);
  optimizer_wrapper_ =
      trace_.Code(torch + "/optim/optimizer.py", "Optimizer.profile_hook_step.<locals>.wrapper", 480);
  optimizer_step_ = trace_.Code(torch + "/optim/adam.py", "Adam.step", 200);
  load_ = trace_.Code(torch + "/serialization.py", "load", 1300);
  c10_ = trace_.Module(torch + "/lib/libc10_cuda.so");
  torch_ = trace_.Module(torch + "/lib/libtorch_cpu.so");
  program_ = trace_.Module("/home/user/program");
  autograd_thread_ = trace_.Thread("pt_autograd_0");
  OnDevice(0);
}

void Program::OnDevice(int32_t device) {
  device_ = device;
  if (allocators_.contains(device)) return;
  trace_.Device(device, capacity_);
  CachingAllocator::Events events;
  events.segment_made = [this, device](uint64_t address, uint64_t size, uint64_t stream) {
    SiteSpec site;
    site.kind = ALLOCATE;
    site.space = DEVICE;
    site.device = device;
    site.thread = thread_;
    site.size = size;
    site.stream = stream;
    site.python = current_python_;
    site.native = current_native_;
    site.api = trace_.String("cudaMalloc");
    driver_bytes_[device] += size;
    segments_[address] = {trace_.Begin(site, address, 0, 0), address, size, device, false, DEVICE, site.api};
    Read();
  };
  events.segment_freed = [this, device](uint64_t address) {
    SiteSpec site;
    site.kind = FREE;
    site.space = DEVICE;
    site.device = device;
    site.api = trace_.String("cudaFree");
    const Memory& segment = segments_[address];
    driver_bytes_[device] -= segment.size;
    trace_.End(site, segment.birth, address, segment.size, 0, 0);
    segments_.erase(address);
  };
  const uint64_t base = (uint64_t{0x7f} << 40) + (static_cast<uint64_t>(device) << 38);
  allocators_[device] = std::make_unique<CachingAllocator>(std::move(events), base, capacity_);
}

void Program::OnThread(const std::string& name) {
  thread_ = name.empty() ? 1 : trace_.Thread(name);
}

CachingAllocator& Program::Allocator() {
  return *allocators_.at(device_);
}

Stack Program::Line(uint32_t line, uint32_t inner) {
  const uint32_t function =
      trace_.Code("/home/user/train.py", "function", (inner > 40 ? inner - 40 : 1) + shift_);
  return trace_.Python({Script(line), {function, inner + shift_}});
}

Stack Program::Torch(uint32_t line, uint32_t op) {
  return trace_.Python({Script(line), {module_call_, 1750}, {functional_, 2000 + op}});
}

Stack Program::Optimizer(uint32_t line, uint32_t op) {
  return trace_.Python({Script(line), {optimizer_wrapper_, 490}, {optimizer_step_, 200 + op}});
}

Stack Program::Move(uint32_t line) {
  return trace_.Python({Script(line), {module_apply_, 920}, {module_apply_, 950}});
}

Stack Program::Load(uint32_t line) {
  return trace_.Python({Script(line), {load_, 1400}});
}

Memory Program::New(Stack python, uint64_t bytes, uint32_t op, uint64_t stream) {
  trace_.Advance(5);
  current_python_ = python;
  current_native_ = trace_.Native({{torch_, 0x1000 + 16 * op}, {c10_, 0x100}});
  CachingAllocator::Block block;
  CachingAllocator& allocator = Allocator();
  SiteSpec site;
  site.device = device_;
  site.thread = thread_;
  site.stream = stream;
  site.python = python;
  site.native = current_native_;
  if (!allocator.Allocate(bytes, stream, block)) {
    site.kind = BLOCK_OUT_OF_MEMORY;
    site.size = block.size;
    failed_ = true;
    trace_.Begin(site, 0, allocator.allocated(), allocator.reserved());
    return {};
  }
  site.kind = BLOCK_ALLOCATE;
  site.space = DEVICE;
  site.size = block.size;
  const uint64_t birth = trace_.Begin(site, block.address, allocator.allocated(), allocator.reserved());
  return {birth, block.address, block.size, device_, true, DEVICE, 0};
}

Memory Program::NewBackward(Stack forward, uint64_t bytes, uint32_t op) {
  trace_.Advance(5);
  current_python_ = 0;
  current_native_ = trace_.Native({{torch_, 0x900000 + 16 * op}, {c10_, 0x100}});
  CachingAllocator::Block block;
  CachingAllocator& allocator = Allocator();
  SiteSpec site;
  site.device = device_;
  site.thread = autograd_thread_;
  site.native = current_native_;
  site.forward = forward;
  if (!allocator.Allocate(bytes, 0, block)) return {};
  site.kind = BLOCK_ALLOCATE;
  site.space = DEVICE;
  site.size = block.size;
  const uint64_t birth = trace_.Begin(site, block.address, allocator.allocated(), allocator.reserved());
  return {birth, block.address, block.size, device_, true, DEVICE, 0};
}

Memory Program::Driver(Stack python, Stack native, Space space, uint64_t bytes, const std::string& api) {
  trace_.Advance(10);
  SiteSpec site;
  site.kind = ALLOCATE;
  site.space = space;
  site.device = device_;
  site.thread = thread_;
  site.size = bytes;
  site.python = python;
  site.native = native;
  site.api = trace_.String(api);
  const uint64_t address = next_address_;
  next_address_ += (bytes + 2 * kMiB - 1) / (2 * kMiB) * 2 * kMiB;
  if (OnTheDevice(space)) driver_bytes_[device_] += bytes;
  const uint64_t birth = trace_.Begin(site, address, 0, 0);
  return {birth, address, bytes, device_, false, space, site.api};
}

Memory Program::DriverInPlaceOf(const Memory& old, Stack native) {
  const uint64_t next = next_address_;
  next_address_ = old.address;
  driver_bytes_[old.device] -= old.size;
  const Memory memory = Driver(0, native, old.space, old.size);
  next_address_ = next;
  return memory;
}

Memory Program::Handle(Stack python, const std::string& api) {
  trace_.Advance(10);
  SiteSpec site;
  site.kind = HANDLE_CREATE;
  site.device = device_;
  site.thread = thread_;
  site.python = python;
  site.api = trace_.String(api);
  const uint64_t handle = next_handle_ += 16;
  return {trace_.Begin(site, handle, 0, 0), handle, 0, device_, false, SPACE_UNSPECIFIED, site.api};
}

void Program::Free(const Memory& memory) {
  if (!memory.block) {
    FreeOn(memory, memory.device);
    return;
  }
  if (memory.birth == TraceBuilder::kNone) return;
  trace_.Advance(2);
  SiteSpec site;
  site.kind = BLOCK_FREE;
  site.device = memory.device;
  CachingAllocator& allocator = *allocators_.at(memory.device);
  const uint64_t size = allocator.Free(memory.address);
  trace_.End(site, memory.birth, memory.address, size, allocator.allocated(), allocator.reserved());
}

void Program::FreeOn(const Memory& memory, int32_t device, Stack native) {
  if (memory.birth == TraceBuilder::kNone) return;
  trace_.Advance(2);
  SiteSpec site;
  site.kind = memory.space == SPACE_UNSPECIFIED ? HANDLE_DESTROY : FREE;
  site.space = memory.space;
  site.device = device;
  site.thread = thread_;
  site.native = native;
  if (memory.space != SPACE_UNSPECIFIED) site.api = trace_.String("cudaFree");
  if (OnTheDevice(memory.space)) driver_bytes_[memory.device] -= memory.size;
  trace_.End(site, memory.birth, memory.address, memory.size, 0, 0);
}

void Program::FreeAddress(uint64_t address, Stack native) {
  trace_.Advance(2);
  SiteSpec site;
  site.kind = FREE;
  site.space = DEVICE;
  site.device = device_;
  site.thread = thread_;
  site.native = native;
  site.api = trace_.String("cudaFree");
  site.result = 1;  // cudaErrorInvalidValue
  trace_.End(site, TraceBuilder::kNone, address, 0, 0, 0);
}

void Program::Read(uint64_t more_used) {
  const uint64_t used = 500 * kMiB + driver_bytes_[device_] + more_used;
  trace_.DeviceMemory(device_, capacity_ - std::min(capacity_, used), capacity_);
}

Stack Program::Native(const std::vector<uint64_t>& offsets) {
  std::vector<std::pair<uint32_t, uint64_t>> frames;
  for (uint64_t offset : offsets) frames.emplace_back(program_, offset);
  return trace_.Native(frames);
}

Stack Program::Library(const std::string& name, uint64_t offset) {
  return trace_.Native({{trace_.Module(std::string(kPackages) + "/nvidia/lib/" + name), offset}});
}

}  // namespace gpumemtrace::synthetic
