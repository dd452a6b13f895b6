// See autograd.h.
#include "interpose/torch/autograd.h"

#include "interpose/hooks.h"
#include "recorder/recorder.h"

namespace gpumemtrace::interpose::torch {
namespace {

uint64_t NextSequenceNumber(Call<uint64_t> call) {
  return call();
}

}  // namespace

uint64_t ForwardStackOfRunningNode() {
  return 0;
}

}  // namespace gpumemtrace::interpose::torch

namespace gpumemtrace::interpose {
GPUMEMTRACE_TORCH_AUTOGRAD_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
