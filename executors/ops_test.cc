// Roles of activations that a compiler keeps apart.
#include "executors/ops.h"

#include <optional>
#include <type_traits>

#include "executors/decoder_ops.h"
#include "executors/encoder_ops.h"

namespace millrace {
namespace {

// Returns whether `call` compiles with arguments of these types.
template <typename Call, typename... Args>
constexpr bool Takes = std::is_invocable_v<Call, Args...>;

using Row = decltype(&DecoderOps::RowLinear);
using Rope = decltype(&AttentionOps::RopeAppend);
using Attend = decltype(&AttentionOps::Attention);
using QkvOf = decltype(&AttentionOps::QkvLinear);
using HeadOf = decltype(&DecoderOps::Head);
using SampleOf = decltype(&DecoderOps::Sample);
using NormOf = decltype(&DecoderOps::Norm);
using HeadNormsArg = const std::optional<HeadNorms>&;

static_assert(Takes<QkvOf, AttentionOps&, LinearId, LinearInput&>);
static_assert(!Takes<QkvOf, AttentionOps&, LinearId, Residual&>,
              "a residual is not a linear's input");
static_assert(!Takes<QkvOf, AttentionOps&, LinearId, Qkv&>, "a product is not a linear's input");
static_assert(!Takes<QkvOf, AttentionOps&, NormId, LinearInput&>, "a norm is not a linear");

static_assert(Takes<Rope, AttentionOps&, int, AttentionSpec&, HeadNormsArg, Qkv>);
static_assert(!Takes<Rope, AttentionOps&, int, AttentionSpec&, HeadNormsArg, Query>,
              "rotated twice");
static_assert(!Takes<Rope, AttentionOps&, int, AttentionSpec&, HeadNormsArg, Qkv&>,
              "the projection is used up");

static_assert(Takes<Attend, AttentionOps&, int, AttentionSpec&, Query&, Consumers>);
static_assert(!Takes<Attend, AttentionOps&, int, AttentionSpec&, Qkv&, Consumers>, "not rotated");

static_assert(Takes<NormOf, DecoderOps&, NormId, Residual&, Consumers>);
static_assert(!Takes<NormOf, DecoderOps&, NormId, LinearInput&, Consumers>, "normed twice");
static_assert(Takes<Row, DecoderOps&, LinearId, LinearInput, Addend, Residual&, NormId, Consumers>);
static_assert(
    !Takes<Row, DecoderOps&, LinearId, LinearInput, Addend, LinearInput&, NormId, Consumers>,
    "only a residual is added to");

static_assert(Takes<HeadOf, DecoderOps&, LinearId, LogitSpec, LinearInput&>);
static_assert(Takes<SampleOf, DecoderOps&, Logits>);
static_assert(!Takes<SampleOf, DecoderOps&, LinearInput&>, "not logits");

static_assert(std::is_base_of_v<CoreOps, DecoderOps> && std::is_base_of_v<CoreOps, EncoderOps>);
static_assert(!std::is_base_of_v<DecoderOps, EncoderOps>, "encoders have no words of decoders");
static_assert(!std::is_base_of_v<AttentionOps, DecoderOps> &&
                  !std::is_base_of_v<MixtureOps, DecoderOps>,
              "a device may lack a kind of layer");
static_assert(!std::is_base_of_v<DecoderPlacer, EncoderPlacer>);
static_assert(!std::is_copy_constructible_v<Residual> &&
              !std::is_copy_constructible_v<LinearInput>);

}  // namespace
}  // namespace millrace
