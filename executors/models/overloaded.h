// Functions as one, for std::visit.
#ifndef MILLRACE_EXECUTORS_MODELS_OVERLOADED_H_
#define MILLRACE_EXECUTORS_MODELS_OVERLOADED_H_

namespace millrace {

// Calls the one of its functions that takes the argument: a function for each kind of a variant. A
// kind without a function does not compile.
template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_OVERLOADED_H_
