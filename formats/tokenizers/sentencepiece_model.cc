#include "formats/tokenizers/sentencepiece_model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/tokenizers/score_merges.h"
#include "formats/tokenizers/wire_format.h"

namespace millrace {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581, SentencePiece's space
constexpr size_t kMaxPieces = 1 << 22;
constexpr size_t kMaxPieceBytes = 1 << 16;

// The values of ModelProto.SentencePiece.Type and TrainerSpec.ModelType.
enum PieceType : uint64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};
enum ModelType : uint64_t { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

struct Piece {
  std::string_view text;
  float score = 0;
  uint64_t type = kNormal;
};

// What is read of the file, with the defaults of sentencepiece_model.proto.
struct Model {
  std::vector<Piece> pieces;
  uint64_t model_type = kUnigram;
  bool suffix = false;
  bool byte_fallback = false;
  int64_t unknown = 0, bos = 1, eos = 2, pad = -1;  // ids; none below 0
  std::string_view charsmap;
  bool dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// Reads messages, and knows where it is for errors.
class ModelReader {
 public:
  explicit ModelReader(std::string name) : name_(std::move(name)) {}

  template <typename... Args>
  absl::Status Bad(const Args&... args) const {
    return absl::InvalidArgumentError(StrCat(name_, ": ", args...));
  }
  template <typename... Args>
  absl::Status Unsupported(const Args&... args) const {
    return absl::UnimplementedError(StrCat(name_, ": ", args...));
  }

  // Calls `read` with each field of a message, until it fails.
  template <typename Read>
  absl::Status ForEachField(std::string_view message, std::string_view path, Read read) const {
    WireReader reader(message);
    while (true) {
      const absl::StatusOr<std::optional<WireField>> field = reader.Next();
      if (!field.ok()) return Bad(path, std::string(field.status().message()));
      if (!field->has_value()) return absl::OkStatus();
      MILLRACE_RETURN_IF_ERROR(read(**field));
    }
  }

  absl::Status Expect(const WireField& field, WireField::Type type, std::string_view path) const {
    if (field.type == type) return absl::OkStatus();
    return Bad(path, ": is of another type than sentencepiece_model.proto says");
  }

  absl::Status ReadPiece(std::string_view message, Model* model) const {
    if (model->pieces.size() == kMaxPieces) return Bad("pieces: over ", kMaxPieces);
    const std::string path = StrCat("pieces[", model->pieces.size(), "]");
    Piece piece;
    MILLRACE_RETURN_IF_ERROR(
        ForEachField(message, path + ": ", [&](const WireField& field) -> absl::Status {
          switch (field.number) {
            case 1:
              piece.text = field.bytes;
              return Expect(field, WireField::Type::kBytes, path + ".piece");
            case 2:
              piece.score = field.AsFloat();
              return Expect(field, WireField::Type::kFixed32, path + ".score");
            case 3:
              piece.type = field.value;
              return Expect(field, WireField::Type::kVarint, path + ".type");
            default:
              return absl::OkStatus();
          }
        }));
    if (piece.text.empty() || piece.text.size() > kMaxPieceBytes) {
      return Bad(path, ".piece: has ", piece.text.size(), " bytes, must be 1 to ", kMaxPieceBytes);
    }
    if (piece.type < kNormal || piece.type > kByte) {
      return Bad(path, ".type: is ", piece.type, ", must be 1 to 6");
    }
    if (!std::isfinite(piece.score)) return Bad(path, ".score: is not finite");
    model->pieces.push_back(piece);
    return absl::OkStatus();
  }

  absl::Status ReadTrainerSpec(std::string_view message, Model* model) const {
    return ForEachField(message, "trainer_spec: ", [&](const WireField& field) -> absl::Status {
      const auto number = static_cast<int64_t>(field.value);
      switch (field.number) {
        case 3:
          model->model_type = field.value;
          break;
        case 24:
          model->suffix = number != 0;
          break;
        case 35:
          model->byte_fallback = number != 0;
          break;
        case 40:
          model->unknown = number;
          break;
        case 41:
          model->bos = number;
          break;
        case 42:
          model->eos = number;
          break;
        case 43:
          model->pad = number;
          break;
        default:
          return absl::OkStatus();
      }
      return Expect(field, WireField::Type::kVarint, StrCat("trainer_spec.", field.number));
    });
  }

  absl::Status ReadNormalizerSpec(std::string_view message, Model* model) const {
    return ForEachField(message, "normalizer_spec: ", [&](const WireField& field) -> absl::Status {
      switch (field.number) {
        case 2:
          model->charsmap = field.bytes;
          return Expect(field, WireField::Type::kBytes, "normalizer_spec.precompiled_charsmap");
        case 3:
          model->dummy_prefix = field.value != 0;
          break;
        case 4:
          model->remove_extra_whitespaces = field.value != 0;
          break;
        case 5:
          model->escape_whitespaces = field.value != 0;
          break;
        default:
          return absl::OkStatus();
      }
      return Expect(field, WireField::Type::kVarint, StrCat("normalizer_spec.", field.number));
    });
  }

  absl::Status RefuseDenormalizer(std::string_view message) const {
    return ForEachField(message, "denormalizer_spec: ", [&](const WireField& field) {
      if (field.number != 2 || field.bytes.empty()) return absl::OkStatus();
      return Unsupported("denormalizer_spec.precompiled_charsmap: is not supported");
    });
  }

  absl::StatusOr<Model> Read(std::string_view bytes) const {
    Model model;
    MILLRACE_RETURN_IF_ERROR(ForEachField(bytes, "", [&](const WireField& field) -> absl::Status {
      constexpr const char* kNames[] = {"pieces", "trainer_spec", "normalizer_spec", "",
                                        "denormalizer_spec"};
      if (field.number > 5 || field.number == 4) return absl::OkStatus();
      MILLRACE_RETURN_IF_ERROR(Expect(field, WireField::Type::kBytes, kNames[field.number - 1]));
      switch (field.number) {
        case 1:
          return ReadPiece(field.bytes, &model);
        case 2:
          return ReadTrainerSpec(field.bytes, &model);
        case 3:
          return ReadNormalizerSpec(field.bytes, &model);
        default:
          return RefuseDenormalizer(field.bytes);
      }
    }));
    MILLRACE_RETURN_IF_ERROR(Check(model));
    return model;
  }

 private:
  absl::Status Check(const Model& model) const {
    if (model.pieces.empty()) return Bad("pieces: there are none");
    if (model.model_type != kUnigram && model.model_type != kBpe) {
      return Unsupported("trainer_spec.model_type: ",
                         model.model_type == kWord   ? "WORD"
                         : model.model_type == kChar ? "CHAR"
                                                     : StrCat(model.model_type),
                         " is not supported (supported: UNIGRAM, BPE)");
    }
    absl::flat_hash_set<std::string_view> texts;
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      const Piece& piece = model.pieces[id];
      if (!texts.insert(piece.text).second) {
        return Bad("pieces[", id, "].piece: \"", Printable(piece.text), "\" is there twice");
      }
      if (piece.type == kUnused && model.model_type == kBpe) {
        return Unsupported("pieces[", id, "].type: UNUSED is not supported in BPE");
      }
    }
    const auto size = static_cast<int64_t>(model.pieces.size());
    if (model.unknown < 0 || model.unknown >= size ||
        model.pieces[static_cast<size_t>(model.unknown)].type != kUnknown) {
      return Bad("trainer_spec.unk_id: ", model.unknown, " is no piece of type UNKNOWN");
    }
    return absl::OkStatus();
  }

  const std::string name_;
};

float BestScore(const Model& model) {
  float best = -std::numeric_limits<float>::infinity();
  for (const Piece& piece : model.pieces) {
    if (piece.type == kNormal) best = std::max(best, piece.score);
  }
  return std::isfinite(best) ? best : 0;
}

// SentencePiece prefers a user-defined piece to its parts by this score.
double UserDefinedScore(float best, std::string_view text) {
  const auto characters =
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; });
  return static_cast<double>(characters) * best - 0.1;
}

void AddPieces(const Model& model, TokenizerSpec* spec) {
  const bool unigram = model.model_type == kUnigram;
  const float best = BestScore(model);
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    VocabularyEntry entry{.text = piece.text, .id = id, .score = piece.score};
    const bool user_defined = piece.type == kUserDefined;
    entry.in_text = piece.type == kNormal || (user_defined && unigram);
    if (user_defined && unigram) entry.score = UserDefinedScore(best, piece.text);
    spec->vocabulary.push_back(entry);
    AddedTokenSpec added{.id = id, .content = std::string(piece.text)};
    if (piece.type == kControl || piece.type == kUnknown) {
      added.special = true;
      spec->added.push_back(std::move(added));
    } else if (user_defined && !unigram) {
      added.normalized = added.verbatim = true;
      spec->added.push_back(std::move(added));
    }
  }
}

SentencePieceNormalizer NormalizerOf(const Model& model) {
  SentencePieceNormalizer normalizer{.charsmap = std::string(model.charsmap),
                                     .remove_extra_whitespaces = model.remove_extra_whitespaces,
                                     .escape_whitespaces = model.escape_whitespaces,
                                     .dummy_prefix = model.dummy_prefix,
                                     .suffix = model.suffix};
  for (const Piece& piece : model.pieces) {
    if (piece.type == kUserDefined) normalizer.kept.emplace_back(piece.text);
  }
  return normalizer;
}

void AddBpe(const Model& model, TokenizerSpec* spec) {
  BpeModelSpec bpe{.unknown = std::string(model.pieces[static_cast<size_t>(model.unknown)].text),
                   .fuse_unknown = true,
                   .byte_fallback = model.byte_fallback,
                   .one_rank_a_token = true};
  std::vector<VocabularyEntry> joined;
  for (const VocabularyEntry& entry : spec->vocabulary) {
    if (entry.in_text) joined.push_back(entry);
  }
  bpe.merges = MergesByScore(joined);
  spec->model = std::move(bpe);
}

}  // namespace

absl::StatusOr<SentencePieceTokenizer> ReadSentencePieceModel(std::string_view contents,
                                                              const std::string& name) {
  MILLRACE_ASSIGN_OR_RETURN(const Model model, ModelReader(name).Read(contents));
  SentencePieceTokenizer read;
  TokenizerSpec& spec = read.spec;
  AddPieces(model, &spec);
  if (model.model_type == kBpe) {
    AddBpe(model, &spec);
  } else {
    spec.model = UnigramModelSpec{.unknown = static_cast<int32_t>(model.unknown),
                                  .byte_fallback = model.byte_fallback};
  }
  spec.normalizers.emplace_back(NormalizerOf(model));
  spec.frame = {std::nullopt};
  spec.decoders = {{Replacement{{false, std::string(kSpaceMark)}, " "},
                    SimpleDecoder::kByteFallback, SimpleDecoder::kFuse}};
  const bool strips = model.dummy_prefix || model.remove_extra_whitespaces;
  if (strips) spec.decoders->emplace_back(StripDecoder{" ", 1, 0});
  const auto text = [&](int64_t id) {
    const bool there = id >= 0 && id < static_cast<int64_t>(model.pieces.size()) &&
                       (model.pieces[static_cast<size_t>(id)].type == kControl ||
                        model.pieces[static_cast<size_t>(id)].type == kUnknown);
    return there ? std::string(model.pieces[static_cast<size_t>(id)].text) : std::string();
  };
  read.texts = {text(model.bos), text(model.eos), text(model.unknown), text(model.pad)};
  return read;
}

}  // namespace millrace
