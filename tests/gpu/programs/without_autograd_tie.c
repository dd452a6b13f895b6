// Preloaded before the shim: PyTorch's counter of autograd nodes itself (ATen/SequenceNumber.h: a number per
// thread), so that the shim is not called for the nodes and its cost without them can be measured.
//   cc -shared -fPIC -O2 -o without_autograd_tie.so without_autograd_tie.c
static __thread unsigned long long next_number __attribute__((tls_model("initial-exec")));
unsigned long long _ZN2at15sequence_number4peekEv(void) {
  return next_number;
}
unsigned long long _ZN2at15sequence_number17get_and_incrementEv(void) {
  return next_number++;
}
