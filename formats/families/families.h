// The list of model families.
#ifndef MILLRACE_FORMATS_FAMILIES_FAMILIES_H_
#define MILLRACE_FORMATS_FAMILIES_FAMILIES_H_

#include <string_view>

#include "absl/types/span.h"
#include "formats/families/family.h"

namespace millrace {

// One line a family, in the order in which messages name them. Each is defined in a file of its
// own.
#define MILLRACE_FAMILIES(FAMILY) \
  FAMILY(kLlama)                  \
  FAMILY(kQwen2)                  \
  FAMILY(kQwen3)                  \
  FAMILY(kQwen35)                 \
  FAMILY(kLfm2)                   \
  FAMILY(kGemma2)                 \
  FAMILY(kGemma3)                 \
  FAMILY(kPhi3)                   \
  FAMILY(kOlmo2)                  \
  FAMILY(kGranite)                \
  FAMILY(kSmolLm3)                \
  FAMILY(kGlm4)                   \
  FAMILY(kQwen2Moe)               \
  FAMILY(kQwen3Moe)               \
  FAMILY(kQwen35Moe)              \
  FAMILY(kQwen3Next)              \
  FAMILY(kLfm2Moe)                \
  FAMILY(kOlmoe)                  \
  FAMILY(kGraniteMoe)             \
  FAMILY(kGraniteHybrid)          \
  FAMILY(kNemotronH)              \
  FAMILY(kNemotronHMoe)           \
  FAMILY(kGptOss)                 \
  FAMILY(kGlm4Moe)                \
  FAMILY(kBert)                   \
  FAMILY(kModernBert)             \
  FAMILY(kNomicBert)

#define MILLRACE_DECLARE_FAMILY(family) extern const Family family;
MILLRACE_FAMILIES(MILLRACE_DECLARE_FAMILY)
#undef MILLRACE_DECLARE_FAMILY

absl::Span<const Family* const> Families();

// Returns the family of this name; nullptr where there is none.
const Family* FindFamily(std::string_view name);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_FAMILIES_H_
