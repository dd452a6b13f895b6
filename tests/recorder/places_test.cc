// Counting by birth place (recorder/fold/places.h) against the plainest way to do it: places with one size
// and with several, large sizes, windows and windows that are merged again.
#include "recorder/fold/places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "recorder/event.h"
#include "recorder/fold/field_reader.h"
#include "recorder/writer/fields.h"

namespace gpumemtrace::tests {
namespace {

using recorder::PlaceFigures;
using recorder::Places;

using Window = std::map<uint32_t, PlaceFigures>;

// What AppendStacks writes, by site.
Window ReadStacks(Places& places, uint64_t last_index) {
  namespace fields = recorder::fields;
  Window window;
  size_t place = 0;
  recorder::ByteBuffer stacks;
  while (places.AppendStacks(&place, 3, last_index, stacks)) {
    recorder::Varints list[11];
    recorder::FieldReader reader(stacks.span());
    recorder::Field field;
    while (reader.Next(&field)) list[field.number] = recorder::Varints(field.bytes);
    while (!list[fields::kFoldedStacksSite].done()) {
      PlaceFigures& figures = window[static_cast<uint32_t>(list[fields::kFoldedStacksSite].Next())];
      figures.births = list[fields::kFoldedStacksBirths].Next();
      figures.born_bytes = list[fields::kFoldedStacksBornBytes].Next();
      figures.least_count = list[fields::kFoldedStacksLeastCount].Next();
      figures.most_count = list[fields::kFoldedStacksMostCount].Next();
      figures.least_bytes = list[fields::kFoldedStacksLeastBytes].Next();
      figures.most_bytes = list[fields::kFoldedStacksMostBytes].Next();
      figures.count = list[fields::kFoldedStacksCount].Next();
      figures.bytes = list[fields::kFoldedStacksBytes].Next();
      const uint64_t distance = list[fields::kFoldedStacksLastBirth].Next();
      if (distance != 0) figures.last_birth = last_index + 1 - distance;
    }
    stacks.Clear();
  }
  return window;
}

class Plain {
 public:
  PlaceFigures& Touch(uint32_t site) {
    const auto [it, is_new] = window_.try_emplace(site);
    if (is_new) {
      it->second.least_count = it->second.most_count = alive_[site].first;
      it->second.least_bytes = it->second.most_bytes = alive_[site].second;
    }
    return it->second;
  }
  void Change(uint32_t site, int64_t count, uint64_t bytes, uint64_t index) {
    PlaceFigures& figures = Touch(site);
    auto& [alive, alive_bytes] = alive_[site];
    alive += static_cast<uint64_t>(count);
    alive_bytes += count > 0 ? bytes : 0 - bytes;
    if (count > 0) {
      ++figures.births;
      figures.born_bytes += bytes;
      figures.last_birth = index;
    }
    figures.least_count = std::min(figures.least_count, alive);
    figures.most_count = std::max(figures.most_count, alive);
    figures.least_bytes = std::min(figures.least_bytes, alive_bytes);
    figures.most_bytes = std::max(figures.most_bytes, alive_bytes);
  }
  Window End() {
    for (auto& [site, figures] : window_) {
      figures.count = alive_[site].first;
      figures.bytes = alive_[site].second;
    }
    Window window;
    window.swap(window_);
    return window;
  }

 private:
  std::map<uint32_t, std::pair<uint64_t, uint64_t>> alive_;
  Window window_;
};

class PlacesTest : public ::testing::TestWithParam<unsigned> {};

TEST_P(PlacesTest, CountsLikeThePlainestWay) {
  constexpr uint32_t kSites = 24;
  std::mt19937_64 random(GetParam());
  Places places;
  Places merged;
  Plain plain;
  Plain plain_merged;
  const auto number = [](Places& of, uint32_t site) {
    // Several calls and devices, two places that differ in their forward stack only, and stacks with great
    // ids.
    const uint32_t native = site / 2 + (site % 8 < 4 ? 0 : uint32_t{1} << 21);
    return of.Number({native, 7, site % 2, site % 3, static_cast<uint8_t>(recorder::EventKind::kAllocate),
                      static_cast<uint8_t>(recorder::Space::kDevice), static_cast<int16_t>(site % 5)},
                     site);
  };
  // The third part of the places has many sizes, one of them a few large ones, the others one each.
  const auto size_of = [&](uint32_t site) -> uint64_t {
    if (site % 3 == 0) return 512 * (1 + random() % 4);
    if (site == 1) return (uint64_t{5} << 30) + random() % 2;
    return site == 2 ? 0 : 4096 * uint64_t{site};
  };
  std::map<uint32_t, std::vector<uint64_t>> alive;
  uint64_t index = random() % 2 == 0 ? 0 : uint64_t{1} << 40;
  for (int pair = 0; pair < 40; ++pair) {
    const uint64_t merged_from = index;
    for (int half = 0; half < 2; ++half) {
      const uint64_t from = index;
      places.BeginAt(from);
      for (uint64_t events = random() % 60; events > 0; --events) {
        const auto site = static_cast<uint32_t>(1 + random() % kSites);
        std::vector<uint64_t>& blocks = alive[site];
        const uint32_t place = number(places, site);
        ASSERT_NE(place, 0u);
        if (blocks.empty() || random() % 2 == 0) {
          blocks.push_back(size_of(site));
          ASSERT_TRUE(places.Born(place, blocks.back(), index, index));
          plain.Change(site, 1, blocks.back(), index);
          plain_merged.Change(site, 1, blocks.back(), index);
        } else {
          std::swap(blocks[random() % blocks.size()], blocks.back());
          ASSERT_TRUE(places.Died(place, blocks.back()));
          plain.Change(site, -1, blocks.back(), index);
          plain_merged.Change(site, -1, blocks.back(), index);
          blocks.pop_back();
        }
        // Sometimes further apart than 32 bits tell.
        index += random() % 50 == 0 ? uint64_t{1} << 33 : 1;
      }
      const Window window = ReadStacks(places, index);
      ASSERT_TRUE(window == plain.End());
      places.Next();
      merged.BeginAt(merged_from);
      for (const auto& [site, figures] : window) {
        ASSERT_TRUE(merged.AddFigures(number(merged, site), figures));
      }
    }
    ASSERT_TRUE(ReadStacks(merged, index) == plain_merged.End());
    merged.Next();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PlacesTest, ::testing::Range(0u, 12u));

}  // namespace
}  // namespace gpumemtrace::tests
