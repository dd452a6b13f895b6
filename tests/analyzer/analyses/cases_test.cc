// The verdicts on traces that real programs left on an NVIDIA H200 (tests/fixtures/cases): drop a trace and
// its entry in truth.json into that folder, and it is judged here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "analyzer/analyzed_trace.h"

namespace gpumemtrace::analyzer {
namespace {

const std::string kFolder = GPUMEMTRACE_FIXTURES "/cases/";

nlohmann::json Truths() {
  std::ifstream file(kFolder + "truth.json");
  return nlohmann::json::parse(file);
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  const nlohmann::json truths = Truths();
  for (const auto& [name, truth] : truths.items()) names.push_back(name);
  return names;
}

class CasesTest : public testing::TestWithParam<std::string> {};

TEST_P(CasesTest, IsJudgedRight) {
  const nlohmann::json truth = Truths().at(GetParam());
  AnalyzeOptions options;
  options.reader.recover = false;
  const std::unique_ptr<AnalyzedTrace> trace = Analyze(kFolder + GetParam() + ".pb", options);
  ASSERT_EQ(trace->read.fault, TraceFault::kNone) << trace->read.message;
  const Findings& findings = trace->analyses.findings();
  const Verdict& verdict = findings.verdict;
  SCOPED_TRACE(verdict.headline + " / " + findings.steps.description);
  EXPECT_EQ(VerdictName(verdict.kind), truth.at("verdict").get<std::string>());
  const auto lines = truth.at("accept_lines").get<std::vector<uint32_t>>();
  // Lines of native code need the program itself, which is not kept.
  const bool native = truth.value("native", false);
  if (!lines.empty() && !native) {
    ASSERT_FALSE(verdict.culprits.empty());
    EXPECT_NE(std::find(lines.begin(), lines.end(), verdict.culprits.front().place.line), lines.end())
        << verdict.culprits.front().place.Short();
  }
  if (truth.at("bytes_per_step").is_number()) {
    const double bytes = truth.at("bytes_per_step").get<double>();
    EXPECT_NEAR(verdict.bytes_per_step, bytes, 0.01 * bytes);
  }
  for (const PeakFinding& peak : findings.peaks) {
    uint64_t sum = 0;
    for (const SharePlace& line : peak.by_line) sum += line.bytes;
    EXPECT_EQ(sum, peak.bytes);
  }
  for (const DeviceAccount& device : findings.accounts) {
    for (const Account* account : {&device.at_peak, &device.at_end}) {
      int64_t sum = static_cast<int64_t>(account->blocks + account->cache) + account->unattributed;
      for (const NamedShare& library : account->libraries) sum += static_cast<int64_t>(library.bytes);
      EXPECT_EQ(sum, static_cast<int64_t>(account->used));
    }
  }
  for (const auto& [device, check] : trace->ledger.self_checks()) {
    EXPECT_EQ(check.allocated_disagree, 0u);
    EXPECT_EQ(check.reserved_disagree, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(H200, CasesTest, testing::ValuesIn(Names()), [](const auto& test) {
  std::string name = "case_" + test.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

}  // namespace
}  // namespace gpumemtrace::analyzer
