// A small network that is trained, step by step, in a make-believe program: what most scenarios are made of.
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "tests/synthetic/program.h"

namespace gpumemtrace::synthetic {

using Memories = std::vector<Memory>;

// Lines of the script, so that they read alike in all scenarios.
inline constexpr uint32_t kModelLine = 10;
inline constexpr uint32_t kInputLine = 20;
inline constexpr uint32_t kForwardLine = 22;
inline constexpr uint32_t kLossLine = 23;
inline constexpr uint32_t kBackwardLine = 25;
inline constexpr uint32_t kStepLine = 26;
inline constexpr uint32_t kKeepLine = 28;
inline constexpr uint32_t kEvalLine = 32;

// A small network that is trained: layers, activations, gradients, an optimizer that may keep state.
class Training {
 public:
  // `at`: how far below the usual lines its own lie, so that two networks have lines of their own.
  Training(Program& program, uint64_t seed, uint64_t layers = 0, uint32_t at = 0)
      : p_(program), random_(seed), at_(at) {
    layers_ = layers != 0 ? static_cast<uint32_t>(layers) : 3 + seed % 4;
    width_ = 256 * kKiB << (seed % 3);
    for (uint32_t i = 0; i < layers_; ++i)
      parameters_.push_back(p_.New(p_.Line(kModelLine + at_), width_, 1));
  }

  uint64_t Random(uint64_t least, uint64_t most) {
    return std::uniform_int_distribution<uint64_t>(least, most)(random_);
  }

  // Forward: the input and the activations, which live until backward. The result is the loss.
  Memory Forward(uint64_t batch) {
    input_ = p_.New(p_.Line(kInputLine + at_), batch, 2);
    for (uint32_t i = 0; i < layers_; ++i) {
      activations_.push_back(p_.New(p_.Torch(kForwardLine + at_, i), batch, 3));
      const Memory temporary = p_.New(p_.Torch(kForwardLine + at_, 10000 + i), batch / 2, 4);
      p_.Free(temporary);
    }
    return p_.New(p_.Line(kLossLine + at_), 4, 5);
  }

  void Backward(uint64_t batch) {
    const Memory seed = p_.New(p_.Line(kBackwardLine + at_), 4, 6);
    for (uint32_t i = layers_; i-- > 0;) {
      const Memory gradient = p_.NewBackward(p_.Torch(kForwardLine + at_, i), batch, 7);
      if (gradients_.size() < layers_)
        gradients_.push_back(p_.NewBackward(p_.Torch(kForwardLine + at_, i), width_, 8));
      p_.Free(gradient);
      p_.Free(activations_.back());
      activations_.pop_back();
    }
    p_.Free(seed);
  }

  void Optimize(bool adam) {
    if (adam) {
      if (state_.empty()) {
        for (uint32_t i = 0; i < 2 * layers_; ++i)
          state_.push_back(p_.New(p_.Optimizer(kStepLine + at_, 1), width_, 9));
      }
      Memories temporaries;
      for (uint32_t i = 0; i < layers_; ++i)
        temporaries.push_back(p_.New(p_.Optimizer(kStepLine + at_, 2), width_ / 8, 10));
      p_.Free(temporaries);
    }
    p_.Free(gradients_);
  }

  void FreeInput() { p_.Free(input_); }

  // `steps` steps of one batch size; after each, what the scenario does with the number of the step.
  template <typename Each>
  void Train(uint64_t steps, bool adam, Each each) {
    for (uint64_t s = 0; s < steps; ++s) {
      Step(kMiB, adam);
      each(s);
    }
  }

  // One whole step with nothing kept.
  void Step(uint64_t batch, bool adam) {
    const Memory loss = Forward(batch);
    Backward(batch);
    Optimize(adam);
    p_.Free(loss);
    FreeInput();
  }

  Program& p_;
  std::mt19937_64 random_;
  uint32_t at_ = 0;
  uint32_t layers_ = 4;
  uint64_t width_ = 0;
  Memories parameters_, gradients_, state_, activations_;
  Memory input_;
};

// Keeps the newest few and drops the oldest: a deque with a bound, a replay buffer, work in flight.
class Bounded {
 public:
  Bounded(Program& program, size_t bound) : p_(program), bound_(bound) {}
  void Push(Memory memory) {
    kept_.push_back(std::move(memory));
    while (kept_.size() > bound_) Drop();
  }
  void Drop() {
    p_.Free(kept_.front());
    kept_.pop_front();
  }
  size_t size() const { return kept_.size(); }

 private:
  Program& p_;
  size_t bound_;
  std::deque<Memory> kept_;
};

}  // namespace gpumemtrace::synthetic
