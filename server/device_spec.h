// Translates the settings into the spec of the device that they choose.
#ifndef MILLRACE_SERVER_DEVICE_SPEC_H_
#define MILLRACE_SERVER_DEVICE_SPEC_H_

#include "config/settings.h"
#include "executors/device_spec.h"

namespace millrace {

DeviceSpec MakeDeviceSpec(const Settings& settings);

}  // namespace millrace

#endif  // MILLRACE_SERVER_DEVICE_SPEC_H_
