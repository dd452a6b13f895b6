// What the header of a trace says about the process, read from the kernel and the environment.
#pragma once

#include <cstdint>
#include <optional>

namespace gpumemtrace::recorder {

// Field 22 of /proc/self/stat; 0 when unknown.
uint64_t ProcessStartTicks();
// /proc/sys/kernel/random/boot_id into a buffer of 40 bytes; "" when unknown.
void BootId(char (&id)[40]);
void HostName(char (&name)[256]);
// The calling thread's name as the kernel knows it.
void ThreadName(char (&name)[16]);

struct Job {
  // Absent outside a multi-process job.
  std::optional<uint32_t> rank;
  std::optional<uint32_t> world_size;
};
// From the variables that launchers set (torchrun, Slurm, Open MPI, MPICH and Intel MPI, PMIx).
Job ReadJob();

// Environment variables worth keeping: settings of the allocators, CUDA, NCCL and XLA, and our own. Nothing
// else of the environment may enter a trace. `length` = of the name alone.
bool IsRecordedVariable(const char* name, uint64_t length);

}  // namespace gpumemtrace::recorder
