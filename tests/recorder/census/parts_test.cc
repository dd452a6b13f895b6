// A census in parts, read back with the schema's own classes.
#include "recorder/census/parts.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <random>
#include <string>
#include <vector>

#include "gpumemtrace/trace.pb.h"

namespace gpumemtrace::recorder::census {
namespace {

std::vector<CensusPart> recorded;
size_t most = SIZE_MAX;

bool Record(std::span<const unsigned char> content) {
  if (recorded.size() == most) return false;
  Content message;
  EXPECT_TRUE(message.ParseFromArray(content.data(), static_cast<int>(content.size())));
  EXPECT_EQ(message.census_part_size(), 1);
  recorded.push_back(message.census_part(0));
  return true;
}

std::span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

class PartsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    recorded.clear();
    most = SIZE_MAX;
  }
};

TEST_F(PartsTest, SmallOneIsOnePart) {
  const std::string text(1000, 'x');
  ASSERT_TRUE(CutIntoParts({7, 100, 120, 5000}, Bytes(text), Record));
  ASSERT_EQ(recorded.size(), 1u);
  const CensusPart& part = recorded[0];
  EXPECT_EQ(part.census(), 7u);
  EXPECT_EQ(part.part(), 0u);
  EXPECT_EQ(part.parts(), 1u);
  EXPECT_EQ(part.first_sequence(), 100u);
  EXPECT_EQ(part.last_sequence(), 120u);
  EXPECT_EQ(part.time_us(), 5000u);
  EXPECT_EQ(part.codec(), Column::ZSTD);
  EXPECT_EQ(part.raw_size(), text.size());
  std::string out(text.size(), '\0');
  EXPECT_EQ(ZSTD_decompress(out.data(), out.size(), part.data().data(), part.data().size()), text.size());
  EXPECT_EQ(out, text);
}

TEST_F(PartsTest, IncompressibleOneIsCutAndKeptAsItIs) {
  std::mt19937_64 random(1);
  std::string text;
  for (int i = 0; i < 100'000; ++i) text.push_back(static_cast<char>(random()));
  ASSERT_TRUE(CutIntoParts({1, 1, 2, 3}, Bytes(text), Record));
  ASSERT_EQ(recorded.size(), (text.size() + kPartBytes - 1) / kPartBytes);
  std::string whole;
  for (size_t i = 0; i < recorded.size(); ++i) {
    EXPECT_EQ(recorded[i].part(), i);
    EXPECT_EQ(recorded[i].parts(), recorded.size());
    EXPECT_LE(recorded[i].data().size(), kPartBytes);
    whole += recorded[i].data();
  }
  EXPECT_EQ(recorded[0].codec(), Column::RAW);
  EXPECT_EQ(whole, text);
}

TEST_F(PartsTest, StopsWhenAPartIsLost) {
  std::mt19937_64 random(2);
  std::string text;
  for (int i = 0; i < 100'000; ++i) text.push_back(static_cast<char>(random()));
  most = 2;
  EXPECT_FALSE(CutIntoParts({1, 1, 2, 3}, Bytes(text), Record));
  EXPECT_EQ(recorded.size(), 2u);
}

}  // namespace
}  // namespace gpumemtrace::recorder::census
