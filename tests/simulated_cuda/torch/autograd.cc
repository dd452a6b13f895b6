#include "autograd.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

namespace torch::autograd {
namespace {

using at::TensorPtr;

thread_local Node* t_current = nullptr;

struct Meta {
  at::Shape shape;
  at::Kind kind;
  int device;
};

// The backward of an ordinary operation: one new tensor per input that wants a gradient.
struct OperationNode : Node {
  using Node::Node;
  std::vector<TensorPtr> apply(TensorPtr gradient) override {
    std::vector<TensorPtr> result(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (next[i] == nullptr) continue;
      if (gradient_is_view) {
        auto view = std::make_shared<at::Tensor>();
        view->storage = gradient->storage;
        view->shape = inputs[i].shape;
        view->kind = inputs[i].kind;
        result[i] = std::move(view);
      } else {
        result[i] = at::Empty(inputs[i].shape, inputs[i].kind, inputs[i].device);
      }
    }
    return result;
  }
  void release() override { saved.clear(); }

  std::vector<Meta> inputs;
  std::vector<TensorPtr> saved;
  bool gradient_is_view = false;
};

struct CustomNode : Node {
  using Node::Node;
  std::vector<TensorPtr> apply(TensorPtr gradient) override { return backward(std::move(gradient)); }
  void release() override { backward = nullptr; }
  std::function<std::vector<TensorPtr>(TensorPtr)> backward;
};

// Leaves: the gradient becomes, or is added to, the leaf's own.
struct AccumulateGrad : Node {
  explicit AccumulateGrad(TensorPtr leaf_tensor)
      : Node(std::numeric_limits<uint64_t>::max()), leaf(std::move(leaf_tensor)) {
    name = "AccumulateGrad";
  }
  std::vector<TensorPtr> apply(TensorPtr gradient) override {
    if (leaf->grad == nullptr) leaf->grad = std::move(gradient);
    return {};
  }
  TensorPtr leaf;
};

std::shared_ptr<Node> EdgeOf(const TensorPtr& tensor) {
  if (tensor == nullptr || !tensor->requires_grad) return nullptr;
  if (tensor->grad_fn != nullptr) return tensor->grad_fn;
  auto accumulator = tensor->accumulator.lock();
  if (accumulator == nullptr) {
    accumulator = std::make_shared<AccumulateGrad>(tensor);
    tensor->accumulator = accumulator;
  }
  return accumulator;
}

bool Wanted(const std::vector<TensorPtr>& inputs) {
  return at::GradEnabled() && std::any_of(inputs.begin(), inputs.end(), [](const TensorPtr& t) {
           return t != nullptr && t->requires_grad;
         });
}

void Connect(Node& node, const std::vector<TensorPtr>& inputs) {
  for (const TensorPtr& input : inputs) node.next.push_back(EdgeOf(input));
}

// One worker thread, as PyTorch has one per device. It lives as long as the process.
class Engine {
 public:
  void Run(const TensorPtr& root, bool retain_graph) {
    std::unique_lock lock(mutex_);
    if (!started_) {
      started_ = true;
      std::thread([this] { Work(); }).detach();
    }
    Task task{root, retain_graph, false, nullptr};
    tasks_.push_back(&task);
    wake_.notify_all();
    wake_.wait(lock, [&] { return task.done; });
    if (task.error) std::rethrow_exception(task.error);
  }

 private:
  struct Task {
    TensorPtr root;
    bool retain_graph;
    bool done;
    std::exception_ptr error;
  };

  void Work() {
    pthread_setname_np(pthread_self(), "pt_autograd_0");
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return !tasks_.empty(); });
      Task* task = tasks_.front();
      tasks_.pop_front();
      lock.unlock();
      try {
        Execute(std::move(task->root), task->retain_graph);
      } catch (...) {
        task->error = std::current_exception();
      }
      lock.lock();
      task->done = true;
      wake_.notify_all();
    }
  }

  static void Execute(TensorPtr root, bool retain_graph) {
    if (root->grad_fn == nullptr) return;
    std::unordered_map<Node*, int> waiting;
    std::vector<Node*> stack{root->grad_fn.get()};
    std::set<Node*> seen{root->grad_fn.get()};
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      for (const auto& next : node->next) {
        if (next == nullptr) continue;
        ++waiting[next.get()];
        if (seen.insert(next.get()).second) stack.push_back(next.get());
      }
    }
    // Latest node first.
    struct Later {
      bool operator()(const std::pair<std::shared_ptr<Node>, TensorPtr>& a,
                      const std::pair<std::shared_ptr<Node>, TensorPtr>& b) const {
        return a.first->sequence_nr_ != b.first->sequence_nr_ ? a.first->sequence_nr_ > b.first->sequence_nr_
                                                              : a.first < b.first;
      }
    };
    std::set<std::pair<std::shared_ptr<Node>, TensorPtr>, Later> ready;
    std::unordered_map<Node*, TensorPtr> gradients;
    ready.emplace(root->grad_fn, at::EmptyLike(*root));
    while (!ready.empty()) {
      auto item = ready.extract(ready.begin());
      const std::shared_ptr<Node> node = std::move(item.value().first);
      TensorPtr gradient = std::move(item.value().second);
      t_current = node.get();
      struct Reset {
        ~Reset() { t_current = nullptr; }
      } reset;
      std::vector<TensorPtr> results = node->apply(std::move(gradient));
      if (!retain_graph) node->release();
      for (size_t i = 0; i < node->next.size(); ++i) {
        const auto& next = node->next[i];
        if (next == nullptr) continue;
        TensorPtr& sum = gradients[next.get()];
        if (i < results.size() && results[i] != nullptr) {
          // A second contribution makes a new tensor, as an addition does.
          sum = sum == nullptr ? std::move(results[i]) : at::EmptyLike(*sum);
        }
        if (--waiting[next.get()] != 0) continue;
        TensorPtr total = std::move(sum);
        gradients.erase(next.get());
        if (total != nullptr) ready.emplace(next, std::move(total));
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task*> tasks_;
  bool started_ = false;
};

}  // namespace

Node::Node(uint64_t sequence_nr)
    : sequence_nr_(sequence_nr), thread_id_(at::RecordFunction::currentThreadId()) {}
Node::~Node() = default;

std::shared_ptr<Node> get_current_node() {
  return t_current != nullptr ? t_current->shared_from_this() : nullptr;
}

std::shared_ptr<Node> Record(const char* name, const std::vector<TensorPtr>& inputs,
                             std::vector<TensorPtr> saved, bool gradient_is_view) {
  if (!Wanted(inputs)) return nullptr;
  auto node = std::make_shared<OperationNode>(at::sequence_number::get_and_increment());
  node->name = name;
  Connect(*node, inputs);
  for (const TensorPtr& input : inputs) {
    node->inputs.push_back(input != nullptr ? Meta{input->shape, input->kind, input->device()} : Meta{});
  }
  node->saved = std::move(saved);
  node->gradient_is_view = gradient_is_view;
  return node;
}

std::shared_ptr<Node> RecordCustom(const char* name, const std::vector<TensorPtr>& inputs,
                                   std::function<std::vector<TensorPtr>(TensorPtr)> backward) {
  if (!Wanted(inputs)) return nullptr;
  auto node = std::make_shared<CustomNode>(at::sequence_number::get_and_increment());
  node->name = name;
  Connect(*node, inputs);
  node->backward = std::move(backward);
  return node;
}

void Backward(const TensorPtr& root, bool retain_graph) {
  static auto* const engine = new Engine;
  engine->Run(root, retain_graph);
}

}  // namespace torch::autograd
