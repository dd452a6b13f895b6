// What the simulated torch calls of the simulated cuBLAS.
#pragma once

extern "C" {
// A matrix product on a device; the first one on it makes a handle with its workspace.
__attribute__((visibility("default"))) void simulatedCublasGemm(int device);
}
