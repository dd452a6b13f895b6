// The estimate of what CUDA arrays take.
#include "interpose/driver/array_size.h"

#include <gtest/gtest.h>

namespace gpumemtrace::interpose::driver {
namespace {

constexpr int kFloat = 0x20;
constexpr int kHalf = 0x10;
constexpr int kNv12 = 0xb0;
constexpr int kBc1 = 0x91;
constexpr int kBc7 = 0x9d;

TEST(ArraySize, MissingExtentsCountAsOne) {
  EXPECT_EQ(EstimateArrayBytes(100, 0, 0, kFloat, 4), 1600u);
  EXPECT_EQ(EstimateArrayBytes(10, 20, 0, kHalf, 2), 800u);
  EXPECT_EQ(EstimateArrayBytes(10, 20, 3, kHalf, 1), 1200u);
}

TEST(ArraySize, PlanarAndCompressedFormatsHaveTheirOwnSizes) {
  EXPECT_EQ(EstimateArrayBytes(64, 64, 0, kNv12, 3), 64u * 64 * 3 / 2);
  EXPECT_EQ(EstimateArrayBytes(64, 64, 0, kBc1, 4), 64u * 64 / 2);
  EXPECT_EQ(EstimateArrayBytes(64, 64, 0, kBc7, 4), 64u * 64);
}

TEST(ArraySize, MipmapsSumTheirLevels) {
  EXPECT_EQ(EstimateMipmapBytes(4, 4, 0, kFloat, 1, 3, false), (16u + 4 + 1) * 4);
  EXPECT_EQ(EstimateMipmapBytes(4, 4, 4, kFloat, 1, 3, false), (64u + 8 + 1) * 4);
  // Layers do not shrink.
  EXPECT_EQ(EstimateMipmapBytes(4, 4, 6, kFloat, 1, 3, true), (16u + 4 + 1) * 4 * 6);
}

}  // namespace
}  // namespace gpumemtrace::interpose::driver
