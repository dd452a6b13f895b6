// Judges a pool that takes memory in ever larger regions: how fast is it filled?
#pragma once

#include "analyzer/analyses/findings.h"
#include "analyzer/analyses/history.h"
#include "analyzer/analyses/trend.h"

namespace gpumemtrace::analyzer {

// A pool that grows by ever larger regions and gives none back (JAX, TensorFlow): each region lasts until it
// is used up, so its size over the steps until the next one is the rate at which memory is kept. Answers
// false when the history is not of that kind.
bool JudgePool(const History& history, const Steps& steps, double last_step, Trend& trend);

}  // namespace gpumemtrace::analyzer
