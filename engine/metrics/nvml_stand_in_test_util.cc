// NVML's functions as a library of their own, for machines without the driver: two GPUs, of which
// the second tells no power.
#include <cstdint>
#include <cstdio>

extern "C" {

struct Memory {
  uint64_t total, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(uintptr_t{index} + 1);
  return 0;
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) {
  std::snprintf(uuid, size, "GPU-%d", static_cast<int>(reinterpret_cast<uintptr_t>(device)) - 1);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  *memory = {.total = 4096, .free = 3072, .used = 1024};
  return 0;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 350500;
  return reinterpret_cast<uintptr_t>(device) == 1 ? 0 : 3;  // not supported
}
int nvmlDeviceGetUtilizationRates(void*, Utilization* utilization) {
  *utilization = {.gpu = 75, .memory = 10};
  return 0;
}
int nvmlDeviceGetTemperature(void*, unsigned, unsigned* degrees) {
  *degrees = 41;
  return 0;
}

}  // extern "C"
