// The verdicts against programs with known truth (tests/synthetic), several seeds each; and what must hold
// for every trace: a peak's composition sums to the peak, the account closes. Other seeds than those below,
// to see how often a verdict fails: GPUMEMTRACE_SEEDS="21 34 55".
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "analyzer/analyses/analyses.h"
#include "analyzer/ledger/ledger.h"
#include "analyzer/symbols/symbolizer.h"
#include "analyzer/trace/reader.h"
#include "tests/synthetic/scenarios.h"

namespace gpumemtrace {
namespace {

struct Judged {
  explicit Judged(const std::string& bytes)
      : ledger(model), symbols(model, {.symbol_paths = {}, .native = true}), analyses(ledger, {}) {
    analyzer::ReaderOptions options;
    options.recover = false;
    result = analyzer::ReadTraceBytes(bytes, "synthetic", options, model, ledger);
    ledger.Finish();
    analyses.Conclude(symbols);
  }
  const analyzer::Findings& findings() const { return analyses.findings(); }

  analyzer::TraceModel model;
  analyzer::Ledger ledger;
  analyzer::Symbolizer symbols;
  analyzer::Analyses analyses;
  analyzer::ReadResult result;
};

std::string Describe(const analyzer::Findings& findings) {
  std::string text = std::string(analyzer::VerdictName(findings.verdict.kind)) + ": " +
                     findings.verdict.headline + "\n  steps " + std::to_string(findings.steps.count) + ": " +
                     findings.steps.description;
  for (const analyzer::GrowthFinding& growth : findings.growth) {
    text += "\n  " + std::string(analyzer::GrowthKindName(growth.kind)) + " " +
            std::to_string(growth.bytes_per_step) + " B/step " + growth.place.Short() + " rises " +
            std::to_string(growth.rises) + "/" + std::to_string(growth.steps_seen) + " since " +
            std::to_string(growth.since_step) + " until " + std::to_string(growth.until_step) +
            " confidence " + std::to_string(growth.confidence);
  }
  for (const analyzer::PeakAdvice& advice : findings.advice) {
    text += "\n  advice " + std::string(analyzer::PeakAdviceName(advice.kind)) + " " +
            std::to_string(advice.bytes) + " " + advice.place.Short() + (advice.headline ? " headline" : "");
  }
  return text;
}

void ExpectSumsToPeak(const analyzer::Findings& findings) {
  for (const analyzer::PeakFinding& peak : findings.peaks) {
    uint64_t origins = 0;
    uint64_t lines = 0;
    uint64_t libraries = 0;
    uint64_t classes = 0;
    uint64_t phases = 0;
    for (const auto& share : peak.by_origin) origins += share.bytes;
    for (const auto& share : peak.by_line) lines += share.bytes;
    for (const auto& share : peak.by_library) libraries += share.bytes;
    for (const auto& share : peak.by_size_class) classes += share.bytes;
    for (const auto& share : peak.by_phase) phases += share.bytes;
    EXPECT_EQ(origins, peak.bytes);
    EXPECT_EQ(lines, peak.bytes);
    EXPECT_EQ(libraries, peak.bytes);
    EXPECT_EQ(classes, peak.bytes);
    EXPECT_EQ(phases, peak.bytes);
  }
}

void ExpectAccountCloses(const analyzer::Findings& findings) {
  for (const analyzer::DeviceAccount& device : findings.accounts) {
    for (const analyzer::Account* account : {&device.at_peak, &device.at_end}) {
      int64_t sum = static_cast<int64_t>(account->blocks + account->cache) + account->unattributed;
      for (const auto& library : account->libraries) sum += static_cast<int64_t>(library.bytes);
      EXPECT_EQ(sum, static_cast<int64_t>(account->used));
    }
  }
}

// By the name of a scenario.
class VerdictTest : public testing::TestWithParam<std::string> {};

void ExpectTruth(const synthetic::Scenario& scenario, uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  synthetic::Program program;
  const synthetic::Truth truth = scenario.run(program, seed);
  program.Finish();
  const Judged judged(program.trace().Bytes());
  ASSERT_EQ(judged.result.fault, analyzer::TraceFault::kNone) << judged.result.message;
  ASSERT_FALSE(judged.result.damage.any()) << judged.result.damage.first_fault;
  const analyzer::Findings& findings = judged.findings();
  const analyzer::Verdict& verdict = findings.verdict;
  SCOPED_TRACE(Describe(findings));
  EXPECT_EQ(analyzer::VerdictName(verdict.kind), truth.verdict);
  if (truth.steps != 0) {
    EXPECT_NEAR(static_cast<double>(findings.steps.count), static_cast<double>(truth.steps),
                std::max(1.0, 0.01 * static_cast<double>(truth.steps)));
  }
  if (!truth.lines.empty()) {
    size_t named = 0;
    for (uint32_t line : truth.lines) {
      named += std::any_of(verdict.culprits.begin(), verdict.culprits.end(),
                           [line](const analyzer::Culprit& culprit) { return culprit.place.line == line; })
                   ? 1u
                   : 0u;
    }
    EXPECT_GE(named, truth.each_line ? truth.lines.size() : 1) << "no culprit on an accepted line";
  }
  for (const analyzer::Culprit& culprit : verdict.culprits) {
    if (!culprit.bytes_known) continue;
    EXPECT_TRUE(culprit.kind != "leak" || culprit.bytes_per_step >= 0.5);
  }
  if (truth.bytes_per_step != 0) {
    EXPECT_NEAR(verdict.bytes_per_step, truth.bytes_per_step, 0.01 * truth.bytes_per_step);
  }
  ExpectSumsToPeak(findings);
  ExpectAccountCloses(findings);
  for (const auto& [device, check] : judged.ledger.self_checks()) {
    EXPECT_EQ(check.allocated_disagree, 0u);
    EXPECT_EQ(check.reserved_disagree, 0u);
  }
}

std::vector<uint64_t> Seeds() {
  const char* wanted = std::getenv("GPUMEMTRACE_SEEDS");
  std::istringstream words(wanted != nullptr ? wanted : "1 2 3 5 8 13");
  std::vector<uint64_t> seeds;
  for (uint64_t seed = 0; words >> seed;) seeds.push_back(seed);
  return seeds;
}

TEST_P(VerdictTest, MatchesTheTruth) {
  for (const synthetic::Scenario& scenario : synthetic::Scenarios()) {
    if (scenario.name != GetParam()) continue;
    for (const uint64_t seed : Seeds()) ExpectTruth(scenario, seed);
  }
}

std::vector<std::string> ScenarioNames() {
  std::vector<std::string> names;
  for (const synthetic::Scenario& scenario : synthetic::Scenarios()) names.push_back(scenario.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Synthetic, VerdictTest, testing::ValuesIn(ScenarioNames()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace gpumemtrace
