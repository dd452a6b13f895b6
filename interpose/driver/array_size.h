// How much memory a CUDA array takes at least. The driver does not tell for ordinary arrays (alignment and
// tiling are its own), so this is an estimate and is called one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumemtrace::interpose::driver {

// `format` and `channels` as in CUDA_ARRAY3D_DESCRIPTOR; 0 for an extent that the array does not have.
uint64_t EstimateArrayBytes(size_t width, size_t height, size_t depth, int format, unsigned channels);

// The same, summed over the levels of a mipmap: each has half the extents of the one before. The depth of a
// layered array is its number of layers and does not shrink.
uint64_t EstimateMipmapBytes(size_t width, size_t height, size_t depth, int format, unsigned channels,
                             unsigned levels, bool layered);

}  // namespace gpumemtrace::interpose::driver
