#include "server/grpc/kserve_callbacks.h"

namespace millrace {

KserveCallbacks::KserveCallbacks() = default;
KserveCallbacks::~KserveCallbacks() = default;

}  // namespace millrace
