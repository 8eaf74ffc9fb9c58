// The tiny models of BERT's family, for tests.
#ifndef MILLRACE_FORMATS_FAMILIES_BERT_TWINS_H_
#define MILLRACE_FORMATS_FAMILIES_BERT_TWINS_H_

#include <string_view>

namespace millrace {

inline constexpr std::string_view kBertTwins = R"([
{"name": "bert_mean", "pooling": "mean_tokens", "normalize": true,
 "config": {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 64,
   "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 128,
   "max_position_embeddings": 64, "type_vocab_size": 2, "layer_norm_eps": 1e-5,
   "hidden_act": "gelu", "torch_dtype": "float32"},
 "mutations": [{"layer_norm_eps": 0.09}, {"num_attention_heads": 2}]},
{"name": "bert_first", "pooling": "cls_token", "in_gguf": false,
 "config": {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 64,
   "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 128,
   "max_position_embeddings": 64, "type_vocab_size": 2, "layer_norm_eps": 1e-5,
   "hidden_act": "gelu", "torch_dtype": "float32"},
 "mutations": [{"layer_norm_eps": 0.09}, {"num_attention_heads": 2}]},
{"name": "bert_pairs", "classifier": "bert.", "in_gguf": false,
 "config": {"architectures": ["BertForSequenceClassification"], "model_type": "bert",
   "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
   "vocab_size": 128, "max_position_embeddings": 64, "type_vocab_size": 2, "layer_norm_eps": 1e-5,
   "hidden_act": "gelu", "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
   "torch_dtype": "float32"},
 "mutations": [{"layer_norm_eps": 0.09}, {"num_attention_heads": 2}]},
{"name": "xlm_roberta_pairs", "classifier": "roberta.",
 "config": {"architectures": ["XLMRobertaForSequenceClassification"], "model_type": "xlm-roberta",
   "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
   "vocab_size": 128, "max_position_embeddings": 66, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
   "pad_token_id": 1, "hidden_act": "gelu", "id2label": {"0": "LABEL_0"},
   "label2id": {"LABEL_0": 0}, "torch_dtype": "float32"},
 "mutations": [{"layer_norm_eps": 0.09}, {"pad_token_id": 0}]},
{"name": "roberta", "pooling": "mean_tokens", "normalize": true,
 "config": {"architectures": ["RobertaModel"], "model_type": "roberta",
   "max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1, "hidden_size": 64,
   "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 128,
   "layer_norm_eps": 1e-5, "hidden_act": "gelu", "torch_dtype": "float32"},
 "mutations": [{"layer_norm_eps": 0.09}, {"num_attention_heads": 2}]},
{"name": "camembert", "pooling": "cls_token", "in_gguf": false,
 "config": {"architectures": ["CamembertModel"], "model_type": "camembert",
   "max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1, "hidden_size": 64,
   "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 128,
   "layer_norm_eps": 1e-5, "hidden_act": "gelu", "torch_dtype": "float32"},
 "mutations": [{"layer_norm_eps": 0.09}, {"pad_token_id": 0}]},
{"name": "mpnet", "spread": 0.2, "pooling": "mean_tokens", "normalize": true, "in_gguf": false,
 "spelled": ["attention.attn.", "attention.LayerNorm"],
 "config": {"architectures": ["MPNetModel"], "model_type": "mpnet",
   "max_position_embeddings": 66, "relative_attention_num_buckets": 32, "pad_token_id": 1, "hidden_size": 64,
   "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 128,
   "layer_norm_eps": 1e-5, "hidden_act": "gelu", "torch_dtype": "float32"},
 "mutations": [{"layer_norm_eps": 0.09}, {"num_attention_heads": 2}]},
{"name": "mpnet_pairs", "classifier": "mpnet.", "in_gguf": false,
 "spelled": ["attention.attn.", "attention.LayerNorm"],
 "config": {"architectures": ["MPNetForSequenceClassification"], "model_type": "mpnet",
   "max_position_embeddings": 66, "relative_attention_num_buckets": 32, "pad_token_id": 1,
   "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "hidden_size": 64,
   "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 128,
   "layer_norm_eps": 1e-5, "hidden_act": "gelu", "torch_dtype": "float32"},
 "mutations": [{"layer_norm_eps": 0.09}]},
{"name": "distilbert", "spread": 0.2, "pooling": "cls_token", "normalize": true, "spelled": ["transformer."],
 "config": {"architectures": ["DistilBertModel"], "model_type": "distilbert", "dim": 64, "hidden_dim": 96, "n_layers": 3, "n_heads": 4, "vocab_size": 128,
   "max_position_embeddings": 64, "activation": "gelu", "torch_dtype": "float32"},
 "mutations": [{"n_heads": 2}]},
{"name": "distilbert_pairs", "classifier": "distilbert.",
 "gguf_more": {"classifier.activation": "silu", "classifier.pooling_type": 1},
 "spelled": ["transformer.", "pre_classifier"],
 "config": {"architectures": ["DistilBertForSequenceClassification"], "model_type": "distilbert",
   "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "dim": 64, "hidden_dim": 96, "n_layers": 3, "n_heads": 4, "vocab_size": 128,
   "max_position_embeddings": 64, "activation": "gelu", "torch_dtype": "float32"},
 "mutations": [{"n_heads": 2}]}
])";

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_BERT_TWINS_H_
