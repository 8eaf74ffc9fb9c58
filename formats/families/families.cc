#include "formats/families/families.h"

namespace millrace {

absl::Span<const Family* const> Families() {
#define MILLRACE_ADDRESS(family) &(family),
  static constexpr const Family* kFamilies[] = {MILLRACE_FAMILIES(MILLRACE_ADDRESS)};
#undef MILLRACE_ADDRESS
  return kFamilies;
}

const Family* FindFamily(std::string_view name) {
  for (const Family* family : Families()) {
    if (family->name == name) return family;
  }
  return nullptr;
}

}  // namespace millrace
