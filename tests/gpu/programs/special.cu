// Memory that comes in special ways, with the program's own ledger of it in PREFIX.<pid>.json:
//   special graph|pool|ipc PREFIX
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#define CHECK(call)                                                                                  \
  do {                                                                                               \
    const cudaError_t result = (call);                                                               \
    if (result != cudaSuccess) {                                                                     \
      std::fprintf(stderr, "%s failed: %d %s\n", #call, static_cast<int>(result), cudaGetErrorString(result)); \
      std::exit(3);                                                                                  \
    }                                                                                                \
  } while (0)

constexpr std::size_t kMiB = 1 << 20;

static void write_numbers(const std::string& prefix, const std::string& json) {
  const std::string name = prefix + "." + std::to_string(getpid()) + ".json";
  std::FILE* file = std::fopen(name.c_str(), "w");
  std::fputs(json.c_str(), file);
  std::fclose(file);
}

// Two allocation nodes, one of them freed in the graph; captured memory is none before the launch.
static void graph(const std::string& prefix) {
  cudaStream_t stream{};
  CHECK(cudaStreamCreate(&stream));
  cudaGraph_t captured{};
  void* kept = nullptr;
  void* given_back = nullptr;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK(cudaMallocAsync(&kept, 8 * kMiB, stream));
  CHECK(cudaMallocAsync(&given_back, 2 * kMiB, stream));
  CHECK(cudaMemsetAsync(given_back, 1, 2 * kMiB, stream));
  CHECK(cudaFreeAsync(given_back, stream));
  CHECK(cudaStreamEndCapture(stream, &captured));
  cudaGraphExec_t executable{};
  CHECK(cudaGraphInstantiate(&executable, captured, 0));
  for (int i = 0; i < 5; ++i) {
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
    if (i < 4) CHECK(cudaFree(kept));
  }
  write_numbers(prefix, "{\"live\": {\"graph\": " + std::to_string(8 * kMiB) + "}, \"peak\": {}}");
}

static void pool(const std::string& prefix) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  cudaMemPool_t own{};
  CHECK(cudaMemPoolCreate(&own, &properties));
  cudaStream_t stream{};
  CHECK(cudaStreamCreate(&stream));
  void* pieces[10];
  for (void*& piece : pieces) CHECK(cudaMallocFromPoolAsync(&piece, kMiB, own, stream));
  for (int i = 0; i < 4; ++i) CHECK(cudaFreeAsync(pieces[i], stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaMemPoolTrimTo(own, 0));
  write_numbers(prefix, "{\"live\": {\"stream_ordered\": " + std::to_string(6 * kMiB) +
                            "}, \"peak\": {\"stream_ordered\": " + std::to_string(10 * kMiB) + "}}");
}

// What another process opens is an alias: counted once, with its owner.
static void ipc(const char* self, const std::string& prefix) {
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, 16 * kMiB));
  cudaIpcMemHandle_t handle{};
  CHECK(cudaIpcGetMemHandle(&handle, memory));
  std::string text;
  for (const char c : handle.reserved) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(c));
    text += digits;
  }
  const pid_t child = fork();
  if (child == 0) {
    execl(self, self, "ipc_child", prefix.c_str(), text.c_str(), static_cast<char*>(nullptr));
    _exit(9);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 5) std::exit(4);
  write_numbers(prefix, "{\"live\": {\"device\": " + std::to_string(16 * kMiB) + "}, \"peak\": {\"device\": " +
                            std::to_string(16 * kMiB) + "}}");
}

static void ipc_child(const std::string& prefix, const char* text) {
  cudaIpcMemHandle_t handle{};
  for (std::size_t i = 0; i < sizeof handle.reserved; ++i) {
    unsigned byte = 0;
    std::sscanf(text + 2 * i, "%2x", &byte);
    handle.reserved[i] = static_cast<char>(byte);
  }
  void* memory = nullptr;
  CHECK(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess));
  CHECK(cudaMemset(memory, 1, 16 * kMiB));
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaIpcCloseMemHandle(memory));
  write_numbers(prefix, "{\"live\": {\"alias\": 0, \"device\": 0}, \"peak\": {\"device\": 0}}");
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string kind = argv[1];
  if (kind == "graph") graph(argv[2]);
  if (kind == "pool") pool(argv[2]);
  if (kind == "ipc") ipc(argv[0], argv[2]);
  if (kind == "ipc_child" && argc > 3) ipc_child(argv[2], argv[3]);
  std::printf("%s done\n", kind.c_str());
  return 5;
}
