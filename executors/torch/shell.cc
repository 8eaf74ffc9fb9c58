// libtorch.so, which PyTorch's packages name among the libraries that they need: an empty shell,
// since all that they call is in libtorch_cpu.so. An empty file would be no C++.
namespace millrace::aten {}
