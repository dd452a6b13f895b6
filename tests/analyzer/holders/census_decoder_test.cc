// Parts of a census: whole, damaged, hostile.
#include "analyzer/trace/census_decoder.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <vector>

#include "tests/analyzer/holders/census_builder.h"

namespace gpumemtrace::analyzer {
namespace {

TEST(CensusAssembler, PutsPartsTogether) {
  CensusBuilder builder;
  builder.Tensor(0x1000, 4, "train.losses[…]");
  const std::vector<CensusPart> parts = builder.Parts(3);
  CensusAssembler assembler;
  EXPECT_FALSE(assembler.Add(parts[0], nullptr).has_value());
  EXPECT_FALSE(assembler.Add(parts[1], nullptr).has_value());
  EXPECT_EQ(assembler.incomplete(), 1u);
  const auto census = assembler.Add(parts[2], nullptr);
  ASSERT_TRUE(census.has_value());
  EXPECT_EQ(assembler.incomplete(), 0u);
  EXPECT_EQ(census->tensors(), 1);
  EXPECT_EQ(census->census.address(0), 0x1000u);
  EXPECT_EQ(census->Text(census->census.holder_entry(0).path()), "train.losses[…]");
  EXPECT_EQ(census->HolderOf(0), 0);
}

TEST(CensusAssembler, MissingPartMakesNoCensus) {
  CensusBuilder builder;
  builder.Tensor(0x1000, 4, "x");
  const std::vector<CensusPart> parts = builder.Parts(3);
  CensusAssembler assembler;
  EXPECT_FALSE(assembler.Add(parts[0], nullptr).has_value());
  EXPECT_FALSE(assembler.Add(parts[2], nullptr).has_value());
  EXPECT_FALSE(assembler.Add(parts[1], nullptr).has_value());
  EXPECT_EQ(assembler.incomplete(), 1u);
}

TEST(CensusAssembler, RefusesWhatDoesNotDecode) {
  CensusBuilder builder;
  builder.Tensor(0x1000, 4, "x");
  CensusPart part = builder.Parts(1)[0];
  part.set_raw_size(part.raw_size() + 1);
  std::string fault;
  CensusAssembler assembler;
  EXPECT_FALSE(assembler.Add(part, &fault).has_value());
  EXPECT_FALSE(fault.empty());
}

TEST(CensusAssembler, RefusesAnEnormousSize) {
  CensusPart part;
  part.set_census(1);
  part.set_parts(1);
  part.set_codec(Column::ZSTD);
  part.set_raw_size(uint64_t{1} << 60);
  part.set_data("x");
  std::string fault;
  CensusAssembler assembler;
  EXPECT_FALSE(assembler.Add(part, &fault).has_value());
  EXPECT_FALSE(fault.empty());
}

TEST(ValidCensus, ColumnsMustBelongTogether) {
  CensusBuilder builder;
  builder.Tensor(0x1000, 4, "x");
  const Census good = builder.census();
  EXPECT_TRUE(ValidCensus(good));
  Census bad = good;
  bad.add_address(1);
  EXPECT_FALSE(ValidCensus(bad));
  bad = good;
  bad.set_name(0, 1000);
  EXPECT_FALSE(ValidCensus(bad));
  bad = good;
  bad.set_holder(0, 2);
  EXPECT_FALSE(ValidCensus(bad));
  bad = good;
  bad.set_role("");
  EXPECT_FALSE(ValidCensus(bad));
  bad = good;
  bad.mutable_holder_entry(0)->set_path(1000);
  EXPECT_FALSE(ValidCensus(bad));
  bad = good;
  bad.mutable_holder_entry(0)->add_store_line(3);
  EXPECT_FALSE(ValidCensus(bad));
  bad = good;
  bad.clear_text();
  EXPECT_FALSE(ValidCensus(bad));
}

}  // namespace
}  // namespace gpumemtrace::analyzer
