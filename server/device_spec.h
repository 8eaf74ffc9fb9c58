// What the settings say to an executor.
#ifndef MILLRACE_SERVER_DEVICE_SPEC_H_
#define MILLRACE_SERVER_DEVICE_SPEC_H_

#include "config/settings.h"
#include "executors/factory.h"

namespace millrace {

DeviceSpec MakeDeviceSpec(const Settings& settings);

}  // namespace millrace

#endif  // MILLRACE_SERVER_DEVICE_SPEC_H_
